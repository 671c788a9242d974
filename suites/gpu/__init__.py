"""The first comparison: every strategy and system on real training, and two jobs in turns."""
