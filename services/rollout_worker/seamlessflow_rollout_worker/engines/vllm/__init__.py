"""The engine over vLLM, and what runs inside vLLM's own processes."""
