"""One small file for each peer, each run in its own environment."""
