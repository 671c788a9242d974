"""What collectives take, library by library: ranks, launchers and trials."""
