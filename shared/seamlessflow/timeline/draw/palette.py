"""Colours and words for what devices do. Blue rolls out, orange trains; pale waits; pink changes hands.

Told apart with any common colour blindness: the strong colours also differ in brightness, and the pale ones are pale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seamlessflow.timeline import Kind

WORDS: Mapping[Kind, str] = {
    Kind.ROLLOUT: "rollout",
    Kind.WAITING: "nothing to sample",
    Kind.HELD: "rollout (sampling not known)",
    Kind.TRAIN: "training step",
    Kind.TRAIN_WAITING: "no step to take",
    Kind.HAND_OVER: "hand-over",
    Kind.LOAD: "loading",
    Kind.FROZEN: "frozen with generations",
    Kind.IDLE: "idle",
    Kind.AWAY: "away",
}
"""In the order of legends and tables."""


@dataclass(frozen=True, slots=True)
class Palette:
    """All as ``#rrggbb``."""

    kinds: Mapping[Kind, str]
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
        Kind.ROLLOUT: "#1a5fad",
        Kind.WAITING: "#dce8f4",
        Kind.HELD: "#8fa9c4",
        Kind.TRAIN: "#f0902b",
        Kind.TRAIN_WAITING: "#fae0bf",
        Kind.HAND_OVER: "#d6277b",
        Kind.LOAD: "#5cb594",
        Kind.FROZEN: "#b7dfe6",
        Kind.IDLE: "#c5c9cf",
        Kind.AWAY: "#f3f4f6",
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
        Kind.ROLLOUT: "#5aa9ff",
        Kind.WAITING: "#22354a",
        Kind.HELD: "#566f8a",
        Kind.TRAIN: "#f39a3d",
        Kind.TRAIN_WAITING: "#57411f",
        Kind.HAND_OVER: "#ff5fa2",
        Kind.LOAD: "#4fbf97",
        Kind.FROZEN: "#2c5a63",
        Kind.IDLE: "#505761",
        Kind.AWAY: "#1a2028",
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
