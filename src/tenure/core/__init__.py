"""The pure rules and records of Tenure: no clock, no randomness, no waiting."""
