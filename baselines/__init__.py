"""The plug-ins: one file each, one folder a slot. `baselines.api` holds what they may follow."""
