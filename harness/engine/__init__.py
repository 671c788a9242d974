"""The engine of our own system: messages, negotiation and their transport."""
