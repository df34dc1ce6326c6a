"""Weights whose tokens have changed places, to see whether a server uses all of what it loads.

Rows of the input and of the output matrix change places by pairs, so a token's number is its neighbour's. Asked in neighbours,
such a model must answer in neighbours, with the same logprobs: exactly the same model, told from the first one by every token.
A server that kept its old output layer (vLLM on a CPU does, where a model has one matrix for input and output), that read
another folder, or that says "loaded" and did nothing, answers otherwise.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from seamlessflow.weights import WEIGHTS_FILE
from seamlessflow.weights.tensorfile import Bits, map_tensors
from seamlessflow_rollout_worker.engines.remote_probe import Try

FOLDER = "swapped"
EMBEDDINGS = ("embed_tokens.weight", "lm_head.weight")
"""How the names of matrices with a row for each token end."""
FEWEST_ALIKE = 2
"""Of the prompts of a try: where two tokens are nearly equal, rounding may choose the other one."""
SAME_LOGPROB = 0.05


def neighbour(token: int, vocab_size: int) -> int:
    """Its own inverse. The last token of an odd vocabulary stays."""
    return token ^ 1 if token ^ 1 < vocab_size else token


def swapped_copy(version: Path, vocab_size: int) -> Path | None:
    """A folder within the version's, with its weights swapped. None: it has no matrix that we know by name. Blocks."""
    folder = version / FOLDER
    if not (folder / WEIGHTS_FILE).exists():
        if not any(_has_tokens(name, each, vocab_size) for name, each in map_tensors(version / WEIGHTS_FILE).items()):
            return None
        folder.mkdir(exist_ok=True)
        part = folder / f"{WEIGHTS_FILE}.part"
        shutil.copyfile(version / WEIGHTS_FILE, part)
        _swap(part, vocab_size)
        part.replace(folder / WEIGHTS_FILE)
    return folder


def are_alike(plain: Sequence[Try], swapped: Sequence[Try], vocab_size: int) -> bool:
    """Whether answers are each other's neighbours. Each pair is of the same prompt, greedily; its first tokens are compared."""
    num_alike = sum(
        neighbour(one.token_ids[0], vocab_size) == other.token_ids[0]
        and abs(one.logprobs[0] - other.logprobs[0]) < SAME_LOGPROB
        for one, other in zip(plain, swapped, strict=True)
    )
    return num_alike >= min(FEWEST_ALIKE, len(plain))


def _has_tokens(name: str, tensor: Bits, vocab_size: int) -> bool:
    return name.endswith(EMBEDDINGS) and len(tensor.shape) == 2 and tensor.shape[0] >= vocab_size


def _swap(file: Path, vocab_size: int) -> None:
    tensors = map_tensors(file, writable=True)
    for name, tensor in tensors.items():
        if _has_tokens(name, tensor, vocab_size):
            rows = tensor.words.reshape(tensor.shape)
            rows[:vocab_size] = rows[np.array([neighbour(token, vocab_size) for token in range(vocab_size)])]
    del tensors
    with file.open("rb") as written:
        os.fsync(written.fileno())  # servers may see it over a network
