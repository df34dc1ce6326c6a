"""Engines over transformers models, in this process."""
