"""The trajectory tree of an episode, its calls, and the samples that it gives. Pure."""
