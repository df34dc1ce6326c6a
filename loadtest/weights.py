"""How many bytes one optimiser step changes in bfloat16 weights, how fast deltas are made and applied, and what updates cost.

Real steps of the trainer's learner (float32 weights, AdamW) on groups of random tokens, half of each group with a positive
advantage: who changes which weight is decided by a real gradient, not by real tasks. The first step of an optimiser moves
every weight by the whole learning rate, which later ones do not, so it is taken and not counted. Each rate begins anew.

What updates cost those who sample is measured with real workers behind a real server: ``loadtest.weights_updates``.

Speeds are full-size weights over time, in 10^6 bytes per second, on all cores, at the larger learning rate unless the key says
another; ``fetch`` is a worker's whole way from a store in a local folder to a checked file.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from loadtest.packing import batch_of_random_tokens, learner_of
from loadtest.report import Figure, arguments, publish
from loadtest.weights_adapters import adapter_figures
from loadtest.weights_downloads import download_figures
from loadtest.weights_updates import figures_of, measure
from seamlessflow.config.settings import Settings
from seamlessflow.models import make_tiny, resolve_model
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import WEIGHTS_FILE, publish_folder, weights_path
from seamlessflow.weights.delta import CHUNK_VALUES, apply, encode, parse
from seamlessflow.weights.digests import num_cores
from seamlessflow.weights.fetch import Held, fetch_version
from seamlessflow.weights.manifest import DELTA_FILE, version_facts
from seamlessflow.weights.safetensors_file import Bits, tensor_digests
from seamlessflow_trainer.weights.safetensors_writer import safetensors_chunks
from seamlessflow_trainer.weights.version_files import bits_of, host_copies

RATES = {"lr1e-6": 1e-6, "lr1e-5": 1e-5}
PUBLISHED_BYTES = 4
"""Of each changed value in the scheme others publish for bfloat16: a 16-bit gap, then the value (THUDM/slime, ``deltas``)."""
PUBLISHED = "a 16-bit gap and the value of each"
COPY = "copying the weights in memory"
MEGABYTE = 1e6
RUN = "weights"

T = TypeVar("T")
Weights = dict[str, torch.Tensor]


@dataclass(slots=True)
class Rate:
    """What was measured at one learning rate, a number for each run."""

    shares: list[float] = field(default_factory=list)
    """Bytes of deltas, of the whole weights' bytes."""
    published_shares: list[float] = field(default_factory=list)
    changed_shares: list[float] = field(default_factory=list)
    bytes_each: list[float] = field(default_factory=list)
    """Bytes of a delta for each value that it changes."""
    encode: list[float] = field(default_factory=list)
    apply: list[float] = field(default_factory=list)
    copy: list[float] = field(default_factory=list)
    """Megabytes per second, these three."""
    fetch_delta: list[float] = field(default_factory=list)
    fetch_full: list[float] = field(default_factory=list)
    """Seconds, these two."""


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name or folder, as in a run file")
    parser.add_argument("--steps", type=int, default=4, help="at each rate; the first does not count")
    parser.add_argument("--groups", type=int, default=4, help="of 4 answers in a step")
    parser.add_argument("--runs", type=int, default=5, help="of each speed, and of each kind of update; the median counts")
    parser.add_argument("--engine", default="transformers", help="of the workers that are updated, as in a run file")
    parser.add_argument("--streams", type=int, default=8, help="generations that an update is to leave alone")
    parser.add_argument("--only-updates", action="store_true", help="no deltas; writes weights_updates.json instead")
    options = parser.parse_args(argv)
    if options.quick:
        options.steps, options.groups, options.runs, options.streams = 2, 1, 1, 2
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = make_tiny(folder / "model", 0, warm_start_steps=1) if options.quick else None
        model = model or resolve_model(options.model, Settings().model_cache)
        chosen = {} if options.only_updates else RATES
        rates = {name: _measure(model, rate, folder / name, options) for name, rate in chosen.items()}
        measuring = measure(model, folder, engine=options.engine, num_updates=options.runs, streams=options.streams)
        figures = _figures(rates) | figures_of(asyncio.run(measuring), options.engine)
        if not options.only_updates:
            figures |= download_figures(folder, options.runs, is_quick=options.quick)
            figures |= adapter_figures(model, folder, options.runs)
    publish("weights_updates" if options.only_updates else "weights", figures, options.results)


def _figures(rates: Mapping[str, Rate]) -> dict[str, Figure]:
    figures = {}
    for name, rate in rates.items():
        goal = 0.1 if name == "lr1e-6" else None
        figures[f"delta_bytes_share_{name}"] = Figure("of full", "lower", rate.shares, PUBLISHED, rate.published_shares, goal)
        figures[f"changed_values_share_{name}"] = Figure("of all", "lower", rate.changed_shares, "every value", [1.0])
        figures[f"delta_bytes_per_changed_value_{name}"] = Figure(
            "bytes", "lower", rate.bytes_each, PUBLISHED, [PUBLISHED_BYTES], PUBLISHED_BYTES
        )
    for name, rate in reversed(tuple(rates.items())):
        suffix = "" if name == "lr1e-5" else f"_{name}"
        figures[f"delta_encode_mb_per_s{suffix}"] = Figure("MB/s", "higher", rate.encode, COPY, rate.copy, 500.0)
        figures[f"delta_apply_mb_per_s{suffix}"] = Figure("MB/s", "higher", rate.apply, COPY, rate.copy, 1000.0)
        figures[f"fetch_seconds{suffix}"] = Figure("s", "lower", rate.fetch_delta, "the same version in full", rate.fetch_full)
    return figures


def _measure(model: Path, learning_rate: float, folder: Path, options: argparse.Namespace) -> Rate:
    found = Rate()
    versions = _versions(model, learning_rate, options)
    for before, after in pairwise(versions[1:]):  # without the first step
        delta = encode(_bits(before), _bits(after))
        num_bytes, parsed = _num_bytes(_bits(after)), parse(delta)
        found.shares.append(len(delta) / num_bytes)
        found.published_shares.append(parsed.num_changed * PUBLISHED_BYTES / num_bytes)
        found.changed_shares.append(parsed.num_changed / parsed.num_values)
        found.bytes_each.append(len(delta) / parsed.num_changed)
    old, new = versions[-2:]
    _measure_speeds(_bits(old), _bits(new), found, options.runs)
    _measure_fetches(old, new, folder, found, options.runs)
    return found


def _versions(model: Path, learning_rate: float, options: argparse.Namespace) -> list[Weights]:
    """The served weights: before any step, and after each."""
    learner = learner_of(model, "bfloat16")
    versions = [host_copies(learner.weights(), torch.bfloat16)]
    for seed in range(options.steps):
        batch = batch_of_random_tokens(options.groups, 4, 24, 24, seed=seed)
        learner.train(batch, learning_rate=learning_rate)
        versions.append(host_copies(learner.weights(), torch.bfloat16))
    return versions


def _measure_speeds(old: Mapping[str, Bits], new: Mapping[str, Bits], found: Rate, num_runs: int) -> None:
    """Encode, apply and copy take turns; what was applied is compared with what it should be."""
    megabytes = _num_bytes(new) / MEGABYTE
    target = {name: Bits(each.dtype, each.shape, each.words.copy()) for name, each in old.items()}
    for run in range(num_runs + 1):
        encoding, delta = _timed(partial(encode, old, new))
        parsed = parse(delta)
        applying, _ = _timed(partial(apply, parsed, target))
        assert all(np.array_equal(target[name].words, new[name].words) for name in new), "a delta did not give the weights"
        copying, _ = _timed(partial(_copy, old, target))
        if run:  # the first one touches memory for the first time
            found.encode.append(megabytes / encoding)
            found.apply.append(megabytes / applying)
            found.copy.append(megabytes / copying)


def _measure_fetches(old: Weights, new: Weights, folder: Path, found: Rate, num_runs: int) -> None:
    """From a store in a folder, from what a worker holds and from nothing."""
    store = Store(f"file://{folder}/store")
    for version, weights in enumerate((old, new)):
        bits = _bits(weights)
        facts = version_facts(
            weights_version=version, step=version, dtype="bfloat16", base=0 if version else None, tensors=tensor_digests(bits)
        )
        files = {WEIGHTS_FILE: b"".join(safetensors_chunks(weights))}
        if version:
            files[DELTA_FILE] = encode(_bits(old), bits)
        publish_folder(store, weights_path(RUN, version), files, facts)
    fetch_version(store, weights_path(RUN, 0), 0, folder / "held")
    held = Held(0, folder / "held" / WEIGHTS_FILE)
    for run in range(num_runs):
        for way, seconds in ((held, found.fetch_delta), (None, found.fetch_full)):
            path, target = weights_path(RUN, 1), folder / f"{run}-{way is None}"
            taken, _ = _timed(partial(fetch_version, store, path, 1, target, held=way))
            seconds.append(taken)
            (target / WEIGHTS_FILE).unlink()


def _copy(source: Mapping[str, Bits], target: Mapping[str, Bits]) -> None:
    """The floor: as many threads and pieces as ``apply`` has."""
    pieces = [
        (target[name].words[begin : begin + CHUNK_VALUES], each.words[begin : begin + CHUNK_VALUES])
        for name, each in source.items()
        for begin in range(0, len(each.words), CHUNK_VALUES)
    ]
    with ThreadPoolExecutor(num_cores()) as pool:
        list(pool.map(lambda piece: np.copyto(*piece), pieces))


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def _bits(weights: Weights) -> dict[str, Bits]:
    return {name: bits_of(name, tensor) for name, tensor in weights.items()}


def _num_bytes(tensors: Mapping[str, Bits]) -> int:
    return sum(each.words.nbytes for each in tensors.values())


if __name__ == "__main__":
    main()
