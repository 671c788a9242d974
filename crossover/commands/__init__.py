"""The command `crossover run | plan | top | status`."""
