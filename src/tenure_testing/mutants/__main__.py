"""Runs the trial of the mutants from the command line."""

import sys

from tenure_testing.mutants.trials import main

if __name__ == "__main__":
    sys.exit(main())
