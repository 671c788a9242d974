"""`python -m crossover`: the command `crossover`."""

import sys

from crossover.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
