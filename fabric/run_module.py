"""`python -P fabric/run_module.py NAME [ARGUMENT …]`: run a module of this checkout as a program.

The project's packages have plain names (`models`, `analysis`). With `-m`, a folder of that name in the current folder
or in PYTHONPATH would be imported in their place.
"""

import runpy
import sys
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parent.parent


def module_command(name: str, *arguments: str) -> list[str]:
    """The command line that runs module `name` of this checkout, with the interpreter of this process."""
    return [sys.executable, "-P", __file__, name, *arguments]


if __name__ == "__main__":
    sys.path.insert(0, str(_CHECKOUT))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
