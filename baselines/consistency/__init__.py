"""When a worker may go on: plug-ins of the slot `consistency`, one file each."""
