"""What collectives take, library by library."""
