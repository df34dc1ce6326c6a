"""Makes the recordings: real services and a real nats-server in processes of their own, killed where a scenario asks for it.

    python -m tests.golden.record [NAME...]      all, or some; a few minutes

Run it on the commit whose journals are to be kept: later code is measured by what that one wrote. A scenario that did not
come out as meant (which generation is in flight when a process dies is chance) is run again, a few times. See
``SCENARIOS`` for what each one does, ``recordings`` for what is written.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats

from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.cli.run_location import Folder
from seamlessflow.contracts import (
    CallAnswered,
    EpisodeEnded,
    Event,
    GenerationEnded,
    RunStarted,
    SegmentSampled,
    StepsCommitted,
    StepTaken,
    claim_of,
)
from seamlessflow.store.large_payloads import INLINE_BYTES, Store
from seamlessflow.weights import MANIFEST
from seamlessflow_trajectory_manager.replay import replay_run
from tests.system.conftest import ROOT, until

from .facts import folds, of, topics, write_facts
from .recordings import FACTS_FILE, FOLDER, MODEL_FILE, STORE_FILE, config_of, pack, unpack_model
from .small_model import make_small_model
from .stage import SECONDS, Stage

ATTEMPTS = 5
AGENTS = {"calculator": "calculate", "compactor": "compact", "rewriter": "rewrite", "teller": "tell"}
NO_EVALUATION = {"evaluation": {"before": False, "after": False}}


def document(*agents: str, **sections: dict[str, Any]) -> dict[str, Any]:
    """A run of few and small steps; ``sections`` change it."""
    made: dict[str, Any] = {
        "name": "golden",
        "seed": 1,
        "model": {"name": "tiny-calculator", "dtype": "float32", "max_context_tokens": 256},
        "tasks": {"source": "deploy.demo.arithmetic:questions", "num_questions": 60, "max_held_out": 2},
        "agents": [
            {
                "env": env,
                "entrypoint": f"tests.golden.agents:{AGENTS[env]}",
                "reward": "tests.golden.agents:parity",
                "share": 2 if env == "calculator" else 1,
            }
            for env in agents
        ],
        "sampling": {"max_tokens": 150},
        "algorithm": {"steps": 4, "groups_per_step": 2, "group_size": 4, "learning_rate": 1e-3, "max_staleness": 1},
        "fleet": {"slots": 6, "agents": 12},
        "checkpoints": {"every_steps": 2},
    }
    for section, values in sections.items():
        made[section] = {**made.get(section, {}), **values} if isinstance(values, dict) else values
    return made


async def tools(stage: Stage) -> None:
    """A whole run with both evaluation rounds. Agents call a tool, compact their history, rewrite earlier turns; devices change
    hands while long answers are sampled, so that one worker goes on where another stopped."""
    stage.train(document("calculator", "compactor", "rewriter", "teller", tasks={"num_questions": 100})).process.wait(SECONDS)


async def killed(stage: Stage) -> None:
    """A worker is killed while it samples for step 1, the trainer between step 3 and its checkpoint, and everything while the
    last step's episodes are sampled: 5 of 6 were taken, 4 are committed. Steps are synchronous, so each waits for what was
    interrupted."""
    training = stage.train(document("calculator", "teller", algorithm={"steps": 6, "max_staleness": 0}, **NO_EVALUATION))
    seen = await stage.until(lambda said: _sampler(said) is not None, live=True)
    os.kill(_pid_in(str(_sampler(seen))), signal.SIGKILL)
    await stage.until(lambda said: _took(said, 3))
    training.kill("trainer")
    await stage.until(lambda said: _took(said, 5))
    await stage.until(lambda said: of(said, StepTaken)[-1].step == 5 and _sampler(said) is not None, live=True)
    stage.power_cut(training)


async def durable(stage: Stage) -> None:
    """Everything dies when the checkpoint of step 2 is durable and nothing was said of it: no GroupTrained, no StepsCommitted.

    The server is stopped while the trainer writes, and killed before it reads what the trainer had to say."""
    training = stage.train(document("calculator", "teller", **NO_EVALUATION))
    until(lambda: training.pid_of("trainer") is not None and training.pid_of("nats-server") is not None, SECONDS)
    trainer, server = training.pid_of("trainer"), training.pid_of("nats-server")
    assert trainer is not None and server is not None
    checkpoint, deadline = stage.store / "checkpoints" / f"{2:08d}", time.monotonic() + SECONDS
    while not checkpoint.exists():
        assert time.monotonic() < deadline
        time.sleep(0.0002)
    os.kill(trainer, signal.SIGSTOP)
    os.kill(training.process.pid, signal.SIGSTOP)
    os.kill(server, signal.SIGSTOP)
    os.kill(trainer, signal.SIGCONT)
    until((checkpoint / MANIFEST).exists, 30)
    os.kill(server, signal.SIGKILL)
    stage.power_cut(training)


async def kept(stage: Stage) -> None:
    """Episodes keep the weights version they began with while others go on to the next. Suspended by Ctrl-C after step 3 of 6:
    the trainer commits it, workers hand back."""
    sections = {"weights": {"pinned": "episode"}, "algorithm": {"steps": 6, "max_staleness": 2}, **NO_EVALUATION}
    training = stage.train(document("calculator", "compactor", "teller", **sections))
    await stage.until(lambda said: _took(said, 3))
    training.process.send_signal(signal.SIGINT)
    training.process.wait(60)


async def lora(stage: Stage) -> None:
    """Adapters are trained. Everything dies after step 3 of 4, of which 2 are committed."""
    sections = {"lora": {"rank": 2, "alpha": 4}, "algorithm": {"learning_rate": 5e-3}, **NO_EVALUATION}
    training = stage.train(document("calculator", "teller", **sections))
    await stage.until(lambda said: _took(said, 3) and any(each.step == 2 for each in of(said, StepsCommitted)))
    stage.power_cut(training)


async def queue(stage: Stage) -> None:
    """Tasks are published to a run on ``up``, by the command and by any NATS client; one is so large that it rests in the
    store, two messages are no tasks. Two trajectory-managers share the shards; one is killed, and the other takes all."""
    stage.server = Folder(stage.path / "runs" / "up")
    up = stage.start("up", "seamlessflow.cli", "up")
    until(lambda: "Five services are up" in up.text(), SECONDS)
    address = stage.address()
    assert address is not None and address.store_url is not None
    given = {"NATS_URL": address.nats_url, "STORE_URL": address.store_url, "NODE": "other-trees"}
    given["WORK_DIR"] = str(stage.path / "other")
    other = stage.start(
        "manager", "seamlessflow_trajectory_manager", **{f"SEAMLESSFLOW_{key}": value for key, value in given.items()}
    )
    sections = {"tasks": {"source": "queue"}, "fleet": {"shards": 2}, "algorithm": {"steps": 3, "drop_zero_variance": False}}
    training = stage.train(document("calculator", "compactor", **sections, **NO_EVALUATION), "--nats", "runs/up")
    await stage.until(lambda said: bool(of(said, RunStarted)))
    await asyncio.sleep(3)  # both managers have their shards
    envs = ("calculator", "compactor")
    tasks = [{"task": f"t{n}", "env": envs[n % 2], "prompt": f"What is {n}1+2{n}?", "data": {"n": n}} for n in range(1, 7)]
    tasks[0]["data"]["notes"] = "note " * (INLINE_BYTES // 4)
    (stage.path / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks[:3]))
    command = ("seamlessflow.cli", "submit", "tasks.jsonl", "--run", stage.run, "--nats", "runs/up")
    assert stage.start("submit", *command).process.wait(60) == 0
    await stage.until(lambda said: len(of(said, CallAnswered)) >= 10)
    other.process.kill()
    client = await nats.connect(address.nats_url)
    await client.publish(f"sf.{stage.run}.task.calculator.w1", b'{"task": "w1", "env": ')
    await client.publish(f"sf.{stage.run}.task.nobody.w2", b'{"task": "w2", "env": "nobody", "prompt": "What is 1+1?"}')
    for task in tasks[3:]:
        await client.publish(f"sf.{stage.run}.task.{task['env']}.{task['task']}", json.dumps(task).encode())
    await client.drain()
    training.process.wait(SECONDS)
    up.process.send_signal(signal.SIGINT)
    up.process.wait(60)


@dataclass(frozen=True)
class Scenario:
    """``holds``: topics that must be in it at least once."""

    play: Callable[[Stage], Awaitable[None]]
    holds: tuple[str, ...]


SCENARIOS = {
    "tools": Scenario(
        tools,
        (
            "tool_calls", "forks_messages_removed", "forks_messages_changed", "forks_rewritten_turn",
            "generations_of_two_workers", "handed_back", "ended",
        ),
    ),
    "killed": Scenario(
        killed, ("generations_of_killed_workers", "steps_taken_again", "steps_not_committed", "open_groups", "tool_calls")
    ),
    "durable": Scenario(durable, ("durable_not_committed", "steps_not_committed", "open_groups")),
    "kept": Scenario(kept, ("kept_version_overlaps", "tool_calls", "open_groups")),
    "lora": Scenario(lora, ("adapters", "steps_not_committed", "open_groups")),
    "queue": Scenario(queue, ("queue_tasks", "blobs", "dead_letters", "managers_with_shards", "moved_shards", "ended")),
}  # fmt: skip


def _took(said: list[Event], step: int) -> bool:
    return isinstance(said[-1], StepTaken) and said[-1].step == step


def _sampler(said: list[Event]) -> str | None:
    """The worker that just said tokens of a generation which it has not finished."""
    last = said[-1]
    if not isinstance(last, SegmentSampled) or last.finish is not None or not last.token_ids:
        return None
    if any(isinstance(each, GenerationEnded | EpisodeEnded) and each.episode == last.episode for each in said[-50:]):
        return None
    claims = [claim for each in said if (claim := claim_of(each)) is not None and claim.generation == last.generation]
    return claims[-1].worker


def _pid_in(worker: str) -> int:
    """Of a process's name, see ``seamlessflow.local.instance_names``."""
    return int(worker.rsplit("-", 3)[1])


def record(name: str) -> None:
    """Play the scenario until it came out as meant, and keep it."""
    for attempt in range(ATTEMPTS):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="golden-") as folder:
            stage = Stage(Path(folder), name)
            unpack_model(stage.path / "models")
            try:
                missing = asyncio.run(_record(stage, SCENARIOS[name]))
            except BaseException:
                for output in sorted(stage.path.glob("*.out")):
                    print(output.read_text()[-2000:])
                raise
            finally:
                stage.close()
        print(f"{name}, attempt {attempt + 1}: {time.monotonic() - began:.0f} s; missing: {', '.join(missing) or 'nothing'}")
        if not missing:
            return
    raise SystemExit(f"{name}: did not come out as meant in {ATTEMPTS} attempts")


async def _record(stage: Stage, scenario: Scenario) -> list[str]:
    await scenario.play(stage)
    recording = await stage.dump()
    store = Store(f"file://{stage.store.parent}")
    events = await recording.events(store)
    found = topics(events, stage.store)
    missing = [topic for topic in scenario.holds if not found[topic]]
    shown = {key: value for key, value in found.items() if value}
    print(f"{stage.run}: {len(recording.journal)} records; {shown}")
    if not missing:
        target = FOLDER / stage.run
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        recording.save()
        pack(stage.store, target / STORE_FILE)
        server = await recording.server(config_of(events))
        replayed = await replay_run(MemoryBus(server), store, stage.run)
        assert replayed.differences == []
        facts = {
            "scenario": " ".join((scenario.play.__doc__ or "").split()),
            "commit": _commit(),
            "num_records": len(recording.journal),
            "first_and_last": [[each.seq, each.time] for each in (recording.journal[0], recording.journal[-1])],
            "holds": list(scenario.holds),
            "topics": found,
            "resumes_at": _resumes_at(events, stage.store),
            "events": dict(sorted(Counter(type(event).__name__ for _, event in events).items())),
            "replay": {"num_equal": replayed.num_equal, "num_pending": replayed.num_pending},
            **folds(recording, events),
        }
        write_facts(target / FACTS_FILE, facts)
    return missing


def _resumes_at(events: list[Any], store: Path) -> int | None:
    """The step of the newest durable checkpoint. None: the run has ended."""
    if topics(events, store)["ended"]:
        return None
    return max((int(path.parent.name) for path in store.glob(f"checkpoints/*/{MANIFEST}")), default=0)


def _commit() -> str:
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main(names: list[str]) -> None:
    if not MODEL_FILE.is_file():
        with tempfile.TemporaryDirectory(prefix="golden-") as folder:
            make_small_model(Path(folder))
            pack(Path(folder), MODEL_FILE)
    for name in names or list(SCENARIOS):
        record(name)


if __name__ == "__main__":
    main(sys.argv[1:])
