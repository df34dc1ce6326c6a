"""What the scheduler publishes next for a run: a fold over its events, and decisions from that. Pure."""
