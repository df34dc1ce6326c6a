"""Checkpoints of a run: claims on its commits, their history, and the folders in the store."""
