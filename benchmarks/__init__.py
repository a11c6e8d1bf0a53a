"""How fast Tenure is on this machine: `make bench`."""
