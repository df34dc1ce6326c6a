"""What clients put in front of their instructions."""

from __future__ import annotations

import pytest

from seamlessflow.tokenization.volatile_lines import without_noisy_lines

HEADER = "x-anthropic-billing-header: cch=1;"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (HEADER, ""),
        (HEADER + "\nbe brief", "be brief"),
        (f"\n {HEADER}\n\n{HEADER}\n\nbe brief\n", "be brief\n"),
        ("be brief\n" + HEADER, "be brief\n" + HEADER),
        ("  be brief", "  be brief"),
        ("", ""),
    ],
)
def test_noisy_lines_go_and_the_instructions_behind_them_stay(text: str, left: str):
    """Only in front: what comes later was written by somebody."""
    assert without_noisy_lines(text) == left
