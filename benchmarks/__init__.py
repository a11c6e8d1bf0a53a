"""How fast Holdfast is on this machine: `make bench`."""
