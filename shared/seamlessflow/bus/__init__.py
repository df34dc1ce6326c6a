"""JetStream behind one Protocol."""
