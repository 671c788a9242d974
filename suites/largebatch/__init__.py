"""How far a batch can grow at an equal number of epochs, and which rule still learns there."""
