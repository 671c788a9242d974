"""What reaching a target costs: steps, bytes and seconds."""
