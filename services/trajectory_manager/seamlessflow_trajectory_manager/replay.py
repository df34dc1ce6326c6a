"""python -m seamlessflow_trajectory_manager.replay --run RUN: what would a fresh manager say to this journal?

Reads a finished or running run, says nothing, changes nothing. Exit status 0: all it would say was said. 1: something
differs. 2: the run cannot be read.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from seamlessflow.bus.base import Bus
from seamlessflow.bus.jetstream import connect
from seamlessflow.config.run import parse_run_config
from seamlessflow.contracts import RunEnded, RunStarted
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import ConfigError, SeamlessFlowError
from seamlessflow.runtime import Journal
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import fetch_folder, model_path

from .rendering.model_renderer import load_renderer
from .replay_comparison import SAID, Comparison, replay
from .run_reader import read_events, shard_filters, started_at
from .trajectory.manager import Manager

NUM_SHOWN = 20

__all__ = ["main", "replay", "replay_run"]


async def replay_run(bus: Bus, store: Store, run: str) -> Comparison:
    """Compare a run's journal with a fresh manager. Raises ConfigError or Unavailable when it cannot be read."""
    if journal_stream(run) not in await bus.stream_names():
        raise ConfigError(f"there is no run {run!r} on this server")
    journal = Journal(bus, store)
    started = await journal.first(RunStarted, run)
    if started is None:
        raise ConfigError(f"run {run!r} has not started")
    config = parse_run_config(started.document, source=f"run {run}")
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        try:
            await asyncio.to_thread(fetch_folder, store, model_path(run), Path(scratch))
        except FileNotFoundError as wrong:
            raise ConfigError(f"run {run!r}: its model folder {model_path(run)} is not in the store {store.url}") from wrong
        renderer = load_renderer(Path(scratch), config.model.name, now=await started_at(bus, run))
    filters = (*shard_filters(run, "*"), *(subject_filter(kind, run=run) for kind in (*SAID, RunEnded)))
    events = [each async for each in read_events(bus, journal, run, filters)]
    return await asyncio.to_thread(replay, events, Manager(renderer, config.model.max_context_tokens, config.sampling.history))


def report(compared: Comparison) -> str:
    """For people."""
    num_different = len(compared.differences)
    lines = [f"compared {compared.num_compared}  equal {compared.num_equal}  different {num_different}  "]
    lines[0] += f"not said yet {compared.num_pending}"
    lines += [f"  {difference}" for difference in compared.differences[:NUM_SHOWN]]
    if num_different > NUM_SHOWN:
        lines.append(f"  … and {num_different - NUM_SHOWN} more")
    return "\n".join(lines)


async def main(nats_url: str, store_url: str, run: str) -> int:
    """Replay, print, and return the exit status."""
    bus = await connect(nats_url, name="replay/trajectory-manager", nkey_seed=os.environ.get("SEAMLESSFLOW_NKEY_SEED"))
    try:
        compared = await replay_run(bus, Store(store_url), run)
    except SeamlessFlowError as wrong:
        print(f"replay: {wrong}", file=sys.stderr)
        return 2
    finally:
        await bus.close()
    print(report(compared))
    return 1 if compared.differences else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--nats", default=os.environ.get("SEAMLESSFLOW_NATS_URL", "nats://127.0.0.1:4222"))
    parser.add_argument("--store", default=os.environ.get("SEAMLESSFLOW_STORE_URL", ""))
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.nats, given.store, given.run)))
