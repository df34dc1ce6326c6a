"""Everything around a trainer, in one process: bus, store, a scheduler that gives leases, agents that answer. Not a test.

``World`` is what stays when a trainer dies; ``World.trainer`` starts one. The policy that answers is the published head,
run by plain transformers without packing: what it records is what an engine would.
"""

from __future__ import annotations

import asyncio
import copy
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from safetensors.torch import load

from seamlessflow.bus.base import Bus, Message, Stored
from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer
from seamlessflow.codec import pack_record, unpack_record
from seamlessflow.contracts import (
    EpisodeOrigin,
    EpisodeStatus,
    Event,
    Float32s,
    Int32s,
    Lease,
    Role,
    RunStarted,
    Sample,
    SamplesReady,
    Service,
    WeightsHead,
)
from seamlessflow.contracts.routes import HINT_POKE, LEASES_BUCKET, WEIGHTS_BUCKET
from seamlessflow.contracts.streams import (
    consumer_name,
    control_streams,
    journal_stream,
    queue_stream,
    run_consumers,
    run_streams,
)
from seamlessflow.errors import BusClosed
from seamlessflow.runtime import Journal, make_context
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import WEIGHTS_FILE
from seamlessflow.weights.fetch import fetch_version
from seamlessflow_trainer.config import TrainerSettings
from seamlessflow_trainer.learner.factory import BuildLearner, build_learner
from seamlessflow_trainer.service import Trainer

RUN, NODE = "r", "local"
VOCABULARY = 24
ACK_WAIT_SECONDS = 0.5
E = TypeVar("E", bound=Event)


def make_tiny_llama(folder: Path, *, dtype: torch.dtype = torch.float32) -> Path:
    """A random Llama with tied embeddings of a few thousand parameters; deterministic."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.4,
    )
    transformers.LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


def run_document(model: Path, **algorithm: object) -> dict[str, Any]:
    """A run of the tiny model; further settings go to the algorithm, ``every_steps`` to the checkpoints."""
    every_steps = algorithm.pop("every_steps", 100)
    return {
        "model": {"name": str(model)},
        "agents": [{"env": "sums", "command": ["true"], "reward": "a:b"}],
        "sampling": {"temperature": 0.7},
        "algorithm": {"steps": 2, "groups_per_step": 2, "group_size": 2, "learning_rate": 1e-2, **algorithm},
        "checkpoints": {"every_steps": every_steps, "keep": 2},
        "fleet": {"max_attempts": 2},
    }


@dataclass
class DyingBus(MemoryBus):
    """The connection of a process that is killed around one publish: just before it is stored, or just after."""

    server: MemoryServer
    dies_at: Callable[[Message], bool] = lambda message: False
    after_storing: bool = False

    def __post_init__(self) -> None:
        super().__init__(self.server)
        self.died = asyncio.Event()
        self.user: asyncio.Task[None] | None = None
        """What runs on it."""

    async def publish(self, message: Message) -> Stored:
        if not self.dies_at(message):
            return await super().publish(message)
        if self.after_storing:
            await super().publish(message)
        await self.abort()
        self.died.set()
        raise BusClosed("killed by the test")


class World:
    ack_wait_seconds = ACK_WAIT_SECONDS

    def __init__(self, folder: Path, document: dict[str, Any], bus: Bus | None = None) -> None:
        self.folder, self.document = folder, document
        self.server = MemoryServer()
        self.bus: Bus = bus or MemoryBus(self.server)
        self.store = Store(f"file://{folder / 'store'}")
        self.journal = Journal(self.bus, self.store)
        self.epoch = 0

    async def open(self) -> World:
        folder = Path(self.document["model"]["name"])
        if folder.is_dir():  # loaded before a trainer loads it: transformers cannot load in two threads at a time
            self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for stream in run_streams(RUN):
            await self.bus.ensure_stream(stream)
        for stream in control_streams():
            await self.bus.ensure_stream(stream)
        for consumer in run_consumers(RUN, envs=["sums"], shards=1, tags=["rollout"], buckets=1):
            await self.bus.ensure_consumer(replace(consumer, ack_wait_seconds=self.ack_wait_seconds))
        await self.journal.publish(RunStarted(run=RUN, document=self.document))
        return self

    async def lease(
        self,
        role: Role,
        *,
        run: str | None = RUN,
        trainer: bool = True,
        gang: tuple[str, ...] = (),
        hand_back: bool = False,
    ) -> int:
        """What the scheduler would write; returns the epoch. ``hand_back``: others go on sampling."""
        self.epoch += 1
        lease = Lease(run=run, role=role, epoch=self.epoch, trainer=trainer, gang=gang, hand_back=hand_back)
        await (await self.bus.kv(LEASES_BUCKET)).put(NODE, pack_record(lease))
        await self.bus.hint(HINT_POKE.format(node=NODE), b"")
        return self.epoch

    @asynccontextmanager
    async def trainer(
        self,
        dies_at: Callable[[Message], bool] = lambda message: False,
        *,
        after_storing: bool = False,
        build: BuildLearner = build_learner,
    ) -> AsyncIterator[DyingBus]:
        """A trainer process; SIGTERM at the end of the block, unless it died."""
        bus = DyingBus(self.server, dies_at, after_storing)
        settings = TrainerSettings(
            store_url=self.store.url, node=NODE, work_dir=self.folder / "work", model_cache=self.folder, device="cpu"
        )
        context = make_context(Service.TRAINER, settings, bus, capabilities=("train",))
        task = bus.user = asyncio.create_task(Trainer(context, settings, build=build).run())
        try:
            yield bus
        finally:
            context.stopping.set()
            if bus.died.is_set():
                with suppress(BaseExceptionGroup, BusClosed):
                    await task
            else:
                await task
            await bus.close()

    async def heard(self, *kinds: type[E]) -> list[E]:
        """All events of some kinds in the journal, in order."""
        events = [await self.journal.open(record) async for record in self.bus.read(journal_stream(RUN))]
        return [event for event in events if isinstance(event, kinds)]

    async def hears(self, kind: type[E], *, count: int = 1, seconds: float = 30.0) -> E:
        """Wait for the ``count``-th event of a kind."""
        async with asyncio.timeout(seconds):
            while len(found := await self.heard(kind)) < count:
                await asyncio.sleep(0.01)
        return found[count - 1]

    async def head(self) -> WeightsHead:
        entry = await (await self.bus.kv(WEIGHTS_BUCKET)).get(RUN)
        assert entry is not None
        return unpack_record(WeightsHead, entry.value)

    async def queued(self) -> int:
        """Messages that the trainer has not acknowledged."""
        return await self.bus.pending(queue_stream(Service.TRAINER, RUN), consumer_name(Service.TRAINER))

    async def weights(self) -> dict[str, torch.Tensor]:
        """The published head as a worker that has nothing makes it: from a full version and deltas."""
        head = await self.head()
        with tempfile.TemporaryDirectory() as folder:
            fetch_version(self.store, head.path, head.weights_version, Path(folder))
            return load((Path(folder) / WEIGHTS_FILE).read_bytes())

    async def policy(self) -> Policy:
        """The published head, by plain transformers."""
        head = await self.head()
        return Policy(
            weights=await self.weights(),
            version=head.weights_version,
            temperature=self.document["sampling"]["temperature"],
            model=copy.deepcopy(self.model),
        )

    async def answer(
        self,
        group: str,
        reward_of: Callable[[list[int]], float],
        *,
        policy: Policy,
        members: Sequence[int] = (0, 1),
        prompt: Sequence[int] = (3, 4, 5),
        num_tokens: int = 4,
    ) -> list[SamplesReady]:
        """Members of a group sample answers and are judged; said as the trajectory-manager says it."""
        said = []
        for index in members:
            sample = policy.sample(prompt, num_tokens)
            answer = list(sample.token_ids)[len(prompt) :]
            said.append(samples_ready(group, index, [sample], reward_of(answer)))
        await self.journal.publish_all(said)
        return said


@dataclass
class Policy:
    weights: dict[str, torch.Tensor]
    version: int
    temperature: float
    model: Any

    def __post_init__(self) -> None:
        self.model.load_state_dict(self.weights, strict=False)
        self.model.eval()

    @torch.no_grad()
    def logprobs(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[T, V] after temperature; row t predicts token t + 1."""
        logits = self.model(input_ids=torch.tensor([list(token_ids)])).logits[0].float()
        return torch.log_softmax(logits / self.temperature, dim=-1)

    def sample(self, prompt: Sequence[int], num_tokens: int) -> Sample:
        token_ids, logprobs = list(prompt), []
        for _ in range(num_tokens):
            row = self.logprobs(token_ids)[-1]
            token = int(torch.multinomial(row.exp(), 1))
            token_ids.append(token)
            logprobs.append(float(row[token]))
        return Sample(
            token_ids=Int32s(token_ids),
            spans=((len(prompt), len(token_ids)),),
            logprobs=Float32s(logprobs),
            versions=((self.version, num_tokens),),
        )


def samples_ready(
    group: str,
    index: int,
    samples: Sequence[Sample],
    reward: float | None,
    *,
    attempt: int = 0,
    status: EpisodeStatus = EpisodeStatus.COMPLETED,
) -> SamplesReady:
    return SamplesReady(
        run=RUN,
        episode=f"{group}-{index}-{attempt}",
        origin=EpisodeOrigin(group=group, task=group, env="sums", index=index, attempt=attempt),
        status=status,
        reward=reward,
        samples=tuple(samples),
        num_sampled=sum(sample.num_sampled for sample in samples),
    )


def by_index() -> Callable[[list[int]], float]:
    """Rewards 0, 1, 0, 1…: groups that teach something, whatever was answered."""
    rewards = iter(range(10_000))
    return lambda answer: float(next(rewards) % 2)
