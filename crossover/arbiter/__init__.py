"""The arbiter: the process on each host that lends its devices, and its link, in turns."""
