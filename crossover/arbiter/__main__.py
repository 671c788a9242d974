"""`python -m crossover.arbiter`: an arbiter that serves one socket."""

import sys

from crossover.arbiter.main import main

sys.exit(main())
