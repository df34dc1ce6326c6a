"""One episode from its start to its reward, whether its agent runs here or elsewhere."""
