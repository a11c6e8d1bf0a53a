"""Webhooks: turns recorded events into signed HTTP requests to receivers outside, each until the receiver has it."""
