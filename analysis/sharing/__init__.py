"""What jobs that share devices gain, against what they could."""
