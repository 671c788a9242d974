"""Inside the packet engine: its state, switches, senders, receivers and the event loop; all compiled."""
