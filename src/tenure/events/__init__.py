"""Follows the event log and calls the handlers of events."""
