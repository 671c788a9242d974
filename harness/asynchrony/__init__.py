"""Workers that do not wait for each other, on a virtual clock with real gradients."""
