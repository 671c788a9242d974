"""The suite `compression`."""
