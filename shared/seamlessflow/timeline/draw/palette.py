"""Colours and words for what devices do. Blue rolls out, orange trains; pale waits; pink changes hands.

Told apart with any common colour blindness: the strong colours also differ in brightness, and the pale ones are pale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seamlessflow.timeline import SpanKind

WORDS: Mapping[SpanKind, str] = {
    SpanKind.ROLLOUT: "rollout",
    SpanKind.WAITING: "nothing to sample",
    SpanKind.HELD: "rollout (sampling not known)",
    SpanKind.TRAIN: "training step",
    SpanKind.TRAIN_WAITING: "no step to take",
    SpanKind.HAND_OVER: "hand-over",
    SpanKind.LOAD: "loading",
    SpanKind.FROZEN: "frozen with generations",
    SpanKind.IDLE: "idle",
    SpanKind.AWAY: "away",
}
"""In the order of legends and tables."""


@dataclass(frozen=True, slots=True)
class Palette:
    """All as ``#rrggbb``."""

    kinds: Mapping[SpanKind, str]
    rollout_few: str
    """Rollout with hardly anything in flight; with much it is ``kinds[ROLLOUT]``."""
    page: str
    text: str
    faint: str
    """Text that stands back."""
    rule: str
    queued: str
    in_flight: str
    staleness: str


LIGHT = Palette(
    kinds={
        SpanKind.ROLLOUT: "#1a5fad",
        SpanKind.WAITING: "#dce8f4",
        SpanKind.HELD: "#8fa9c4",
        SpanKind.TRAIN: "#f0902b",
        SpanKind.TRAIN_WAITING: "#fae0bf",
        SpanKind.HAND_OVER: "#d6277b",
        SpanKind.LOAD: "#5cb594",
        SpanKind.FROZEN: "#b7dfe6",
        SpanKind.IDLE: "#c5c9cf",
        SpanKind.AWAY: "#f3f4f6",
    },
    rollout_few="#a9cbea",
    page="#ffffff",
    text="#1b1f24",
    faint="#656d76",
    rule="#d8dee4",
    queued="#7b4fb5",
    in_flight="#1a5fad",
    staleness="#4d5560",
)

DARK = Palette(
    kinds={
        SpanKind.ROLLOUT: "#5aa9ff",
        SpanKind.WAITING: "#22354a",
        SpanKind.HELD: "#566f8a",
        SpanKind.TRAIN: "#f39a3d",
        SpanKind.TRAIN_WAITING: "#57411f",
        SpanKind.HAND_OVER: "#ff5fa2",
        SpanKind.LOAD: "#4fbf97",
        SpanKind.FROZEN: "#2c5a63",
        SpanKind.IDLE: "#505761",
        SpanKind.AWAY: "#1a2028",
    },
    rollout_few="#25507d",
    page="#0f141a",
    text="#e6edf3",
    faint="#8b949e",
    rule="#2a323c",
    queued="#b899ec",
    in_flight="#5aa9ff",
    staleness="#aab4c0",
)
