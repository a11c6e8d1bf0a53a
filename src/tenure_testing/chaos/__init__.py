"""Chaos tests: real processes under random faults for some minutes, then an audit of all records."""
