"""Our queue and its rivals, measured on one machine in one run: `make bench-peers`."""
