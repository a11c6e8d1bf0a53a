"""Where jobs are run."""
