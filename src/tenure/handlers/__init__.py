"""The API for handlers: the context of the running job, control exceptions, injected values and middleware."""
