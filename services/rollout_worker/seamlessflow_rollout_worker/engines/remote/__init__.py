"""The engine over inference servers that already run: vLLM's and SGLang's, over HTTP."""
