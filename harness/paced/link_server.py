"""A paced link in a process of its own: `python -m harness.paced.link_server SOCKET`; it ends with its parent."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from models.device_server import serve
from models.fluid import FluidDevice

if __name__ == "__main__":
    number = serve(
        Path(sys.argv[1]),
        parent=os.getppid(),
        on_ready=lambda: print("ready", flush=True),
        fluid=FluidDevice(linger_s=0),
    )
    sys.exit(128 + number)
