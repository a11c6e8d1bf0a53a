"""Tells whether jobs are being run: a judgement of what the storage shows, and its way out over HTTP."""
