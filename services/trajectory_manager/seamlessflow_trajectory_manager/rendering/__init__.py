"""Messages to token ids and back, by a model's own chat template."""
