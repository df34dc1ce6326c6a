"""What a rollout-worker adds to its engine, as figures. Pure.

| key (``_alone``: one request at a time) | a first token, in ms, the median of a series |
|---|---|
| first_token_p50_ms | ours, from publishing the request until its first token is here |
| added_first_token_p50_ms | that, minus the bare engine's in the same round: all that we add, our engine's own share included |
| around_engine_first_token_p50_ms | before and after our engine alone: what our engine adds is not in it |
| before_engine_, after_engine_ | its two parts |

Both sides have as many requests in flight, so a first token waits for a step of theirs; what is added is a difference of
two such waits, and can be below 0 where a series had luck.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from loadtest.cpu_seconds import is_known
from loadtest.report import Figure

KINDS = ("plain", "streamed", "alone")
"""Of series: nobody reads along; somebody does; one at a time, read along."""


@dataclass(slots=True)
class Turn:
    """One series of one side."""

    tokens_per_second: float
    firsts: list[float]
    """Seconds from asking to the first token, of each request."""
    before: list[float] = field(default_factory=list)
    """Of those, from publishing until the engine was asked."""
    after: list[float] = field(default_factory=list)
    """From the engine's first token until it was read."""
    cpu_per_token: float = 0.0
    """Processor seconds of its processes: the bare engine's; the worker's and the server's. 0.0: it cannot be told here."""

    @property
    def around(self) -> list[float]:
        return [before + after for before, after in zip(self.before, self.after, strict=True)]


def figures_of(sides: Mapping[str, Mapping[str, Sequence[Turn]]]) -> dict[str, Figure]:
    ours, bare = (sides["plain"][side] for side in ("ours", "bare"))
    share = [mine.tokens_per_second / theirs.tokens_per_second for mine, theirs in zip(ours, bare, strict=True)]
    what, whole = "the bare engine", "all of a bare first token"
    figures = {
        "tokens_per_s_share_of_bare": Figure("of bare", "higher", share, what, [1.0], 0.97),
        "tokens_per_s": Figure("/s", "higher", _speeds(ours), what, _speeds(bare)),
        "tokens_per_s_streamed": Figure("/s", "higher", *_both(sides["streamed"], what)),
    }
    if is_known() and all(turn.cpu_per_token > 0 for turn in (*ours, *bare)):  # ticks of 10 ms: a short series has none
        costs = ([1e3 * turn.cpu_per_token for turn in turns] for turns in (ours, bare))
        figures["processor_ms_per_token"] = Figure("ms", "lower", next(costs), what, next(costs))
    for name, suffix, goal in (("streamed", "", 5.0), ("alone", "_alone", None)):
        turns, theirs = sides[name]["ours"], _milliseconds([t.firsts for t in sides[name]["bare"]])
        firsts = _milliseconds([t.firsts for t in turns])
        added = [mine - bare for mine, bare in zip(firsts, theirs, strict=True)]
        figures[f"added_first_token_p50_ms{suffix}"] = Figure("ms", "lower", added, whole, theirs, goal)
        figures[f"first_token_p50_ms{suffix}"] = Figure("ms", "lower", firsts, what, theirs)
        parts = {
            "around_engine": [t.around for t in turns],
            "before_engine": [t.before for t in turns],
            "after_engine": [t.after for t in turns],
        }
        for part, seconds in parts.items():
            figures[f"{part}_first_token_p50_ms{suffix}"] = Figure("ms", "lower", _milliseconds(seconds), whole, theirs)
    return figures


def _both(turns: Mapping[str, Sequence[Turn]], what: str) -> tuple[list[float], str, list[float]]:
    return _speeds(turns["ours"]), what, _speeds(turns["bare"])


def _speeds(turns: Sequence[Turn]) -> list[float]:
    return [turn.tokens_per_second for turn in turns]


def _milliseconds(series: Sequence[Sequence[float]]) -> list[float]:
    """The median of each series."""
    return [1e3 * median(seconds) for seconds in series]
