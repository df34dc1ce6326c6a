"""``seamlessflow weights`` and its sub-commands."""
