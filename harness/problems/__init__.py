"""The papers' own problems, without networks of layers: sparse regression in shared memory, and the Lasso by blocks."""
