"""Chaos: real processes under random faults for some minutes, then an audit that believes neither side alone."""
