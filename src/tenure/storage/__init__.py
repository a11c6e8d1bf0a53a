"""The storage protocol and its implementations."""
