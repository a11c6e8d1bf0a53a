"""The trial of the mutants on the command line."""

import sys

from tenure.testing.trials import main

if __name__ == "__main__":
    sys.exit(main())
