"""What a played cell came to, computed from its journal alone. Pure.

Rates and shares are of the steady state: from the end of the warm-up's last step to the last step. Tokens and seconds are
modelled ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from seamlessflow.contracts import (
    EpisodeEnded,
    EpisodeStatus,
    Event,
    GenerationEnded,
    GenerationFinish,
    GenerationRequested,
    RoleAssigned,
    SamplesReady,
    SegmentSampled,
    StepTaken,
    claim_of,
)
from seamlessflow.reports.ledger import Ledger
from seamlessflow.timeline import SpanKind, Timeline, TimelineFold, shares_by_node, total

from .cell_figures import CellFigures
from .timed_cell import Cell
from .timed_clock import length_in
from .timed_work import done_in, work_seconds

WARMUP_STEPS = 4
"""Not counted: the fleet fills up, and the first batches were rolled out without company."""


@dataclass(frozen=True)
class Figures(CellFigures):
    """One cell. Throughput counts work as ``timed_work`` does, lost and repeated tokens as ``misplaced``; what was fed again
    includes what a cache held."""

    trained_throughput: float
    """Tokens that steps used, a second: over a long run it is the same as throughput."""
    shares: Mapping[str, float]
    """Of every kind of span."""
    wall_seconds: float
    """Real ones, of the window."""
    lanes: Timeline = field(repr=False)


def figures_of(cell: Cell, events: Sequence[tuple[Event, float]], warmup_steps: int = WARMUP_STEPS) -> Figures:
    """Raises ValueError when there is no steady state: fewer than two steps beyond the warm-up."""
    taken = living_steps((event, at) for event, at in events)
    if len(taken) - warmup_steps < 2:
        raise ValueError(f"{cell.run}: {len(taken)} steps were taken, and {warmup_steps} of them only warm up")
    since, until = taken[warmup_steps - 1][1], taken[-1][1]
    counted = [event for event, _ in taken[warmup_steps:]]
    seconds = cell.scale.modelled_seconds(until - since)
    fold = TimelineFold()
    for event, at in events:
        fold.apply(event, at)
    lanes = fold.lanes(cell.run)
    by_node = {n: s for n, s in shares_by_node(lanes.spans, (since, until)).items() if s.present_seconds > 0}
    whole = total(by_node.values())
    moves = _moves(event for event, _ in events)
    sampled = sum(len(event.token_ids) for event, _ in events if isinstance(event, SegmentSampled))
    node_seconds = cell.scale.modelled_seconds(sum(each.present_seconds for each in by_node.values()))
    done = done_in(cell, events, (since, until), counted)
    everything = sum(event.metrics["trained_tokens"] for event, _ in taken) * cell.modelled_tokens_per_token
    first = next(at for event, at in events if claim_of(event) is not None)
    return Figures(
        throughput=done.tokens / seconds,
        over_bound=work_seconds(cell, events, (since, until), counted) / node_seconds * done.used,
        trained_throughput=done.trained / seconds,
        all_throughput=everything / cell.scale.modelled_seconds(until - first),
        busy=whole.busy,
        least_busy=min((each.busy for each in by_node.values()), default=0.0),
        handover=whole.hand_over,
        shares={kind.value: whole.share(kind) for kind in SpanKind},
        lost_or_repeated=sum(misplaced(event for event, _ in events).values()),
        reprefilled=moves.tokens / max(1, sampled),
        moved=moves.count,
        staleness_mean=fmean(event.metrics["staleness_mean"] for event in counted),
        staleness_max=int(max(event.metrics["staleness_max"] for event in counted)),
        masked=done.masked / max(1.0, done.trained + done.masked),
        step_seconds=seconds / len(counted),
        steps=len(taken),
        wall_seconds=until - since,
        lanes=lanes,
    )


def nodes_given_up(events: Iterable[tuple[Event, float]]) -> int:
    """Leases that were taken from nodes which had fallen silent. Without churn: this machine stood still, and the cell says
    nothing about the fleet."""
    return sum(isinstance(event, RoleAssigned) and event.reason == "the node is gone" for event, _ in events)


def living_steps(events: Iterable[tuple[Event, float]]) -> list[tuple[StepTaken, float]]:
    """Each step number once, by the newest line that took it, in order."""
    found: dict[int, tuple[StepTaken, float]] = {}
    for event, at in events:
        if isinstance(event, StepTaken) and (event.step not in found or event.line >= found[event.step][0].line):
            found[event.step] = (event, at)
    return [found[step] for step in sorted(found)]


@dataclass(frozen=True, slots=True)
class Moves:
    """Generations that somebody went on with behind the first claim."""

    count: int
    tokens: int
    """Prompt and tokens so far, at each further claim."""


def _moves(events: Iterable[Event]) -> Moves:
    prompts: dict[str, int] = {}
    claimed: set[str] = set()
    count = tokens = 0
    for event in events:
        if isinstance(event, GenerationRequested):
            prompts[event.generation] = event.parent_tokens + len(event.suffix)
        elif (claim := claim_of(event)) is not None:
            if claim.generation in claimed:
                count += 1
                tokens += prompts.get(claim.generation, 0) + claim.start
            claimed.add(claim.generation)
    return Moves(count, tokens)


def misplaced(events: Iterable[Event]) -> Counter[str]:
    """Tokens of the data plane that are lost or repeated, by what is wrong; empty when every token is there exactly once.

    * ``gap``, ``overlap``: a segment does not begin where the one before it ended;
    * ``length``: a generation that ended with a stop token is not as long as its seed says (an engine went on wrongly);
    * ``unended``: sampled tokens of a completed episode's generation that has no end;
    * ``samples``: a completed episode's samples are not what was sampled for it;
    * ``ledger``: its tokens do not add up; an episode that is a gap of it counts 1.
    """
    wrong, everything = Counter[str](), list(events)
    requests: dict[str, GenerationRequested] = {}
    lengths: Counter[str] = Counter()
    of_episode: dict[str, list[str]] = {}
    ended: set[str] = set()
    completed: set[str] = set()
    for event in everything:
        if isinstance(event, GenerationRequested):
            requests[event.generation] = event
            of_episode.setdefault(event.episode, []).append(event.generation)
        elif isinstance(event, SegmentSampled):
            behind = event.start - lengths[event.generation]
            wrong["gap" if behind > 0 else "overlap"] += abs(behind)
            lengths[event.generation] = max(lengths[event.generation], event.start) + len(event.token_ids)
        elif isinstance(event, EpisodeEnded) and event.status is EpisodeStatus.COMPLETED:
            completed.add(event.episode)
        finish = event.finish if isinstance(event, SegmentSampled | GenerationEnded) else None
        if finish is not None and isinstance(event, SegmentSampled | GenerationEnded):
            ended.add(event.generation)
            if finish is GenerationFinish.STOP and (request := requests.get(event.generation)) is not None:
                wrong["length"] += abs(length_in(request.seed) - lengths[event.generation])
    for event in everything:
        if isinstance(event, SamplesReady) and event.episode in completed:
            sampled = sum(lengths[each] for each in of_episode.get(event.episode, ()))
            wrong["samples"] += abs(sampled - sum(sample.num_sampled for sample in event.samples))
    for episode in completed:
        wrong["unended"] += sum(lengths[each] for each in of_episode.get(episode, ()) if each not in ended)
    ledger = Ledger.of(everything)
    wrong["ledger"] += abs(ledger.tokens.issued - ledger.tokens.explained) + len(ledger.gaps)
    return +wrong
