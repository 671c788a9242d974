"""What the networks train on: images, text, and how ranks take their samples."""
