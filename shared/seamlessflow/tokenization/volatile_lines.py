"""Lines that clients put in front of their instructions, other ones in each request, and that tell the model nothing."""

from __future__ import annotations

NOISE = ("x-anthropic-billing-header:",)
"""Beginnings of such lines: Claude Code's, which would make a new conversation of every call."""


def without_noisy_lines(text: str) -> str:
    """Instructions without the noisy lines that they begin with, and without what is empty behind those.

    Line by line: real instructions may follow in the same text. The text itself where it begins with none.
    """
    while text.lstrip().startswith(NOISE):
        text = text.lstrip().partition("\n")[2].lstrip("\n")
    return text
