"""The suite consistency."""
