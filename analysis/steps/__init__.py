"""Step times by method and place, beside predictions."""
