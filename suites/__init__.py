"""The questions: one folder a suite, with a grid of trials, and the command line."""
