"""`python -m mugraph` is the command line."""

import sys

from mugraph.cli import main

if __name__ == "__main__":
    sys.exit(main())
