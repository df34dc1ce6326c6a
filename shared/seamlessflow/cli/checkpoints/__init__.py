"""``seamlessflow checkpoints``."""
