"""One small file for each peer, each run in an environment of its own."""
