"""One generation from its delivery to its stored end: pulled, claimed, sampled, written in segments."""
