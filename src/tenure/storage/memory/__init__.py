"""The storage in memory: the model that every storage must equal."""
