"""The benchmark of the trajectory-manager has the reference that it says."""

from __future__ import annotations

from loadtest.trees import WholeTemplate
from seamlessflow.models.tiny import CHAT_TEMPLATE
from seamlessflow_trajectory_manager.rendering.chat_template import ChatTemplate


def test_the_reference_renders_the_whole_conversation() -> None:
    """Ours renders a template of this form from its tail on."""
    assert ChatTemplate(CHAT_TEMPLATE, {}).start(9) == 8
    assert WholeTemplate(CHAT_TEMPLATE, {}).start(9) == 0
