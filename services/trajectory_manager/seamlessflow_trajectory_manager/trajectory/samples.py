"""A tree as samples: each root-to-leaf path once, each sampled token trained in at most one of them.

    sys usr [a] usr [b]       two calls went on from [a]: the first path trains [a] and [b],
    sys usr  a  usr [c]       the second has a as context and trains [c]

Turns whose answer never reached the agent are not trained: as leaves they are left out, inside a path they are context.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from seamlessflow.contracts import Float32s, Int32s, Sample

from .tree import Run, Tree, Turn, merge_runs


def samples_of(tree: Tree, undelivered: Collection[str] = ()) -> tuple[Sample, ...]:
    """Samples in depth-first order, oldest branch first. A path that would train nothing gives none."""
    trained: set[str] = set(undelivered)
    samples = []
    for leaf in leaves(tree, undelivered):
        path = tree.path(leaf)
        fresh = {turn.call for turn in path if turn.call not in trained and turn.num_sampled}
        if fresh:
            trained |= fresh
            samples.append(_sample(path, fresh))
    return tuple(samples)


def leaves(tree: Tree, undelivered: Collection[str]) -> Iterator[str]:
    """Turns that nothing trainable goes on from, depth first; branches without a trainable turn are left out."""
    trainable = {turn.call for turn in tree if turn.call not in undelivered and turn.num_sampled}
    children = tree.children()
    keeps: set[str | None] = set()
    for turn in reversed(list(tree)):  # children come after their parents
        if turn.call in trainable or any(child in keeps for child in children[turn.call]):
            keeps.add(turn.call)
    stack: list[str] = [call for call in reversed(children[None]) if call in keeps]
    while stack:
        call = stack.pop()
        further = [child for child in children[call] if child in keeps]
        if not further:
            yield call
        stack.extend(reversed(further))


def _sample(path: list[Turn], fresh: set[str]) -> Sample:
    spans: list[tuple[int, int]] = []
    logprobs: list[bytes] = []
    runs: list[Run] = []
    position = 0
    for turn in path:
        position += turn.num_tokens
        start = position - turn.num_sampled
        if turn.call in fresh:
            spans.append((start, position))
            logprobs.append(turn.logprobs.to_bytes())
            runs.extend(turn.versions)
    return Sample(
        token_ids=Int32s.from_bytes(b"".join(turn.raw_ids for turn in path)),
        spans=tuple(spans),
        logprobs=Float32s.from_bytes(b"".join(logprobs)),
        versions=merge_runs(runs),
    )
