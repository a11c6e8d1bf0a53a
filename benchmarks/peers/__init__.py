"""Our queue and others, measured on one machine in one run: `make bench-peers`."""
