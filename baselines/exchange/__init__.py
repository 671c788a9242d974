"""Exchange: how ranks combine what they send."""
