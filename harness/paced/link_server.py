"""A paced link in a process of its own: `python -m harness.paced.link_server SOCKET PARENT`.

It ends with process PARENT, which must be the one that starts it, and removes its socket and, if nothing else is in it,
the folder: a script that is killed cannot.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from models.device import DeviceError
from models.device_server import serve
from models.fluid import FluidDevice

if __name__ == "__main__":
    socket = Path(sys.argv[1])
    try:
        number = serve(
            socket,
            parent=int(sys.argv[2]),  # asked for here, it could be another's already, and this would never end
            on_ready=lambda: print("ready", flush=True),
            fluid=FluidDevice(linger_s=0),
        )
    except DeviceError as error:
        print(error, flush=True)  # in place of `ready`: whoever started this says it
        sys.exit(1)
    finally:
        with suppress(OSError):
            socket.parent.rmdir()
    sys.exit(128 + number)
