"""What one attempt appends to the subject of its generation, each event behind the one before it: the fence. Pure.

    claim ─▶ segment ─▶ … ─▶ last segment, or end          what was there at once: segment that claims ─▶ …

``last_seq`` is what the next append expects to be the last of the subject, and it only ever becomes the sequence of what was
stored of this attempt itself. So whatever somebody else appended since refuses the next append, however it came about.
"""

from __future__ import annotations

from seamlessflow.contracts import GenerationClaimed, GenerationEnded, GenerationFinish, GenerationRequested, SegmentSampled

from .inflight import History, Stretch, segment_of


class Chain:
    """One claim and what follows from it. ``history``: what was read before, and the claim stands on.

    bucket: in which the next generations of its episode find this worker; said with the end.
    """

    def __init__(
        self, request: GenerationRequested, history: History, *, worker: str, nonce: str, bucket: int | None = None
    ) -> None:
        self.claimed = False
        """Whether something of ours is stored: a refusal after that means that somebody claimed later."""
        self.last_seq = history.last_seq
        self._request, self._worker, self._nonce = request, worker, nonce
        self._bucket = bucket if bucket != request.bucket else None
        self._start = len(history.token_ids)

    def claim(self) -> GenerationClaimed:
        """For what is not sampled at once."""
        request = self._request
        return GenerationClaimed(
            run=request.run,
            episode=request.episode,
            generation=request.generation,
            shard=request.shard,
            worker=self._worker,
            nonce=self._nonce,
            start=self._start,
        )

    def segment(self, stretch: Stretch, end: GenerationFinish | None = None) -> SegmentSampled:
        """``end``: nothing comes after it. The first thing that an attempt stores is its claim, too."""
        bucket = None if end is None else self._bucket
        return segment_of(self._request, self._nonce, stretch, end, None if self.claimed else self._worker, bucket)

    def end(self, finish: GenerationFinish, num_tokens: int) -> GenerationEnded:
        """``num_tokens``: of the whole generation, all stored before."""
        request = self._request
        return GenerationEnded(
            run=request.run,
            episode=request.episode,
            generation=request.generation,
            shard=request.shard,
            nonce=self._nonce,
            finish=finish,
            num_tokens=num_tokens,
            bucket=self._bucket,
        )

    def stored(self, seq: int) -> None:
        """What was made last is in the journal, under this sequence."""
        self.last_seq, self.claimed = seq, True
