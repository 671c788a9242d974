"""Workers and servers as processes: whether the virtual clock of the suite consistency tells the truth."""
