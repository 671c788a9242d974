"""How a trial is executed: one training loop, one engine, systems, transports, launch."""
