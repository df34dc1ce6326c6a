"""Whether what a peer sent as samples can be trained at all. Pure."""

from __future__ import annotations

from seamlessflow.contracts import Sample, SamplesReady
from seamlessflow.errors import BadInput


def check_samples(ready: SamplesReady, *, group_size: int, vocab_size: int) -> None:
    """Raise BadInput that says what is wrong with which sample; nothing of the episode is trained then."""
    if not 0 <= ready.origin.index < group_size:
        raise BadInput(f"episode {ready.episode}: member {ready.origin.index} of a group of {group_size}")
    for number, sample in enumerate(ready.samples):
        problem = _problem(sample, vocab_size)
        if problem:
            raise BadInput(f"episode {ready.episode}, sample {number}: {problem}; nothing of it is trained")


def _problem(sample: Sample, vocab_size: int) -> str | None:
    edges = [edge for span in sample.spans for edge in span]
    if any(start >= end for start, end in sample.spans) or edges != sorted(edges):
        return f"spans must be ascending, disjoint and not empty, got {sample.spans}"
    if edges and not (edges[0] >= 1 and edges[-1] <= len(sample.token_ids)):
        return f"spans must lie in 1..{len(sample.token_ids)} (a sampled token follows a prompt), got {sample.spans}"
    spanned = sum(end - start for start, end in sample.spans)
    versioned = sum(count for _, count in sample.versions)
    if not spanned == len(sample.logprobs) == versioned:
        return f"{spanned} tokens in spans, {len(sample.logprobs)} logprobs and {versioned} versions; all three must agree"
    if any(not 0 <= token < vocab_size for token in sample.token_ids):
        return f"token ids must lie in 0..{vocab_size - 1}; was it made with another model's tokenizer?"
    return None
