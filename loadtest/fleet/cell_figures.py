"""What reports say of a cell, timed or simulated: the same names and units for both, so that they stand in one table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CellFigures:
    """Of the steady state, unless it says otherwise. Tokens and seconds are modelled ones of the whole fleet."""

    throughput: float
    """Tokens a second, each counted as far as its work was done, rolled out and trained."""
    all_throughput: float
    """Tokens that steps used, a second, over the whole run from its beginning to its last step."""
    over_bound: float
    """Share of the bound of the cost model: the least that its work takes, over the time of all nodes that were there. Masked
    tokens do not count."""
    busy: float
    """Share of all nodes' time in which they sampled or trained."""
    least_busy: float
    """Of the node that was least so, while it was there."""
    handover: float
    """Share of all nodes' time."""
    lost_or_repeated: int
    """Tokens of the whole run that are not where they should be, exactly once."""
    reprefilled: float
    """Tokens that were fed to an engine again because their generation moved, for each sampled token, over the whole run."""
    moved: int
    """Generations of the whole run that somebody else went on with."""
    staleness_mean: float
    staleness_max: int
    masked: float
    """Share of the tokens in steps that were too old."""
    step_seconds: float
    steps: int
    """Taken in all, the warm-up's included."""
