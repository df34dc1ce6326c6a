"""A LoRA run's versions: their bytes, and how long a worker takes from an adapter in a store to a merged, checked file.

The adapters have the run file's default rank, on every linear layer; they are filled with random numbers, as merging takes as
long for any.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from loadtest.report import Figure
from seamlessflow.config.run import parse_run_config
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import WEIGHTS_FILE, publish_folder, weights_path
from seamlessflow.weights.adapter_fetch import ADAPTER_FOLDER
from seamlessflow.weights.adapters import ADAPTER_FILE, AdapterFacts
from seamlessflow.weights.fetch import fetch_version
from seamlessflow_trainer.learner.lora import AdapterLearner
from seamlessflow_trainer.learner.model_loading import load_learner
from seamlessflow_trainer.weights.lora_versions import AdapterVersionBuilder, publish_base

RUN = "adapters"
SIZE = 1e-2
FULL = "the base in full"


def adapter_figures(model: Path, folder: Path, num_runs: int) -> dict[str, Figure]:
    """Against a full version of the same model, fetched from the same store."""
    learner, store = _learner(model), Store(f"file://{folder}/adapters")
    base = publish_base(store, RUN, learner.base_weights(), torch.bfloat16)
    maker = AdapterVersionBuilder(AdapterFacts(*base, learner.adapter_config))
    files = maker.make(learner.weights(), version=0, step=0, newest=-1)
    num_bytes = publish_folder(store, weights_path(RUN, 0), files.contents(), files.facts)
    bases, merged, full = folder / "bases", list[float](), list[float]()
    for run in range(num_runs + 1):
        target = folder / f"adapted-{run}"
        began = time.perf_counter()
        fetch_version(store, weights_path(RUN, 0), 0, target, bases=bases)
        taken = time.perf_counter() - began
        began = time.perf_counter()
        fetch_version(store, base[0], 0, folder / "full")
        if run:  # the first one fetched the base, too
            merged.append(taken)
            full.append(time.perf_counter() - began)
        (target / WEIGHTS_FILE).unlink()
        (target / ADAPTER_FOLDER / ADAPTER_FILE).unlink()
    share = num_bytes / (bases / Path(base[0]).name / WEIGHTS_FILE).stat().st_size
    return {
        "adapter_bytes_share": Figure("of full", "lower", [share], FULL, [1.0]),
        "adapter_fetch_seconds": Figure("s", "lower", merged, FULL, full),
    }


def _learner(model: Path) -> AdapterLearner:
    document = {
        "model": {"name": str(model), "dtype": "bfloat16"},
        "agents": [{"env": "none", "command": ["true"]}],
        "algorithm": {"steps": 1},
        "lora": {},
    }
    learner = load_learner(model, parse_run_config(document), torch.device("cpu"))
    assert isinstance(learner, AdapterLearner)
    torch.manual_seed(0)
    for tensor in learner.weights().values():
        tensor.normal_(std=SIZE)
    return learner
