"""What models write around thoughts and calls. Tokens of these are text, whatever a tokenizer says of them."""

from __future__ import annotations

THINK, THOUGHT = "<think>", "</think>"
CALL, CALLED = "<tool_call>", "</tool_call>"
