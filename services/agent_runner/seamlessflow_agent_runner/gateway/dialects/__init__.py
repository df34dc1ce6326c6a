"""The APIs that agents speak, OpenAI's and Anthropic's: requests to calls, and answers to bodies and events. Pure."""
