"""The memory storage, and the model that every storage must equal."""
