"""The papers' own problems: objectives over rounds, and their figures."""
