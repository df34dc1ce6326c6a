"""Samples: root-to-leaf paths of an episode's tree, ready for training."""

from __future__ import annotations

from .arrays import Float32s, Int32s
from .base import Event, Record, Token
from .episodes import EpisodeOrigin, EpisodeStatus


class Sample(Record):
    """One path. Tokens inside ``spans`` were sampled and are trained here; all others are context."""

    token_ids: Int32s
    """[T] prompt, sampled and tool tokens from root to leaf."""
    spans: tuple[tuple[int, int], ...]
    """Half-open ranges of ``token_ids``, ascending and disjoint. A token that a sibling path trains is not in a span."""
    logprobs: Float32s
    """[S] one per token inside spans, in order; S is their total length."""
    versions: tuple[tuple[int, int], ...]
    """Run-length weights versions over the S tokens: (version, count)."""

    @property
    def num_sampled(self) -> int:
        return len(self.logprobs)


class SamplesReady(Event):
    """All samples of one attempt of a training episode; none unless it completed."""

    episode: Token
    origin: EpisodeOrigin
    status: EpisodeStatus
    reward: float | None
    samples: tuple[Sample, ...] = ()
    num_sampled: int
    """Tokens the episode's engines were accepted to have sampled, in samples or not."""
    num_undelivered: int = 0
    """Of those, tokens of answers that never reached the agent."""
    num_roots: int = 0
    num_forks: int = 0
    """Calls that could not go on from the exact tokens of the turn they would have gone on from."""
    fork_causes: dict[str, int] = {}
    """How many forks of each cause: tools_changed, messages_removed, messages_changed, rewritten_turn, template_changed."""
    reprefilled_tokens: int = 0
    """Tokens that an engine had seen already and had to be fed again because of forks."""


class EpisodeEvaluated(Event):
    """One attempt of an evaluation episode is over."""

    episode: Token
    origin: EpisodeOrigin
    status: EpisodeStatus
    reward: float | None
    num_sampled: int
    weights_versions: tuple[int, ...] = ()
