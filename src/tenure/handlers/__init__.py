"""What a handler may use: its job's context, injected values, middleware."""
