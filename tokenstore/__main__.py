"""`python -m tokenstore` is the command `tokenstore`."""

import sys

from tokenstore.cli import main

if __name__ == "__main__":
    sys.exit(main())
