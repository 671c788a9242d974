"""The search for the rates of the suite largebatch: an equal budget for every rule and batch."""
