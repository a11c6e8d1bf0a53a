"""The demo: real jobs under real faults, and an audit that does not rely on the queue's own records."""
