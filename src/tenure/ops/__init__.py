"""Views and look-ups that the command line and the health server share."""
