"""Weights versions on this worker: followed, fetched, loaded, and kept for pinned episodes."""
