"""What of a trial is refused before it starts, one file for each way to train: values and remedies are named."""
