"""Plays a rollout-worker whose engine answers at once: claim, one segment, end. python -m loadtest.gateway_worker

The worker's own writer (seamlessflow_rollout_worker.generations.segment_writer) says them, so the journal gets what a real
worker gives it, each
append fenced by the one before. Not the whole rollout-worker with the scripted engine: that draws one token at a time in
Python, some ten milliseconds for a thousand of them, on the two cores that everything here shares. What a real worker does
besides is left out, too: looking for the episode's end, reading the generation's history and its parent's tokens.

A generation of few tokens is a streamed one's: it comes at a pace, token by token. When the first one left the engine is told
on standard input's next line.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time

from loadtest.gateway_child import lines_told, reply
from loadtest.gateway_ours import RUN, TAG
from loadtest.gateway_words import END, make_tokenizer, text
from seamlessflow.bus.base import Delivery
from seamlessflow.config.settings import Settings
from seamlessflow.contracts import GenerationFinish, GenerationRequested, Service
from seamlessflow.contracts.streams import consumer_name, queue_stream
from seamlessflow.runtime import Context, open_context
from seamlessflow_rollout_worker.engines.base import Chunk
from seamlessflow_rollout_worker.generations.generation_state import STREAMED, History, Pace
from seamlessflow_rollout_worker.generations.segment_writer import SegmentWriter

NUM_VARIANTS = 8
LOGPROB = -0.1234567
CREDIT = 128
SECONDS_PER_TOKEN = 0.02
STREAMED_TOKENS = 20
"""A generation of at most so many tokens comes at that pace."""


class Player:
    """Answers a run's generations."""

    def __init__(self, context: Context) -> None:
        self._context = context
        tokenizer = make_tokenizer()
        (self._end,) = tokenizer.encode(END).ids
        self._texts = [tuple(tokenizer.encode(text(1000, variant)).ids) for variant in range(NUM_VARIANTS)]
        self._count = 0
        self.first_tokens: dict[str, float] = {}

    async def on_delivery(self, delivery: Delivery) -> None:
        request = await self._context.handlers.open(delivery)
        assert isinstance(request, GenerationRequested)
        num_tokens = request.sampling.max_tokens
        self._count += 1
        ids = (*self._texts[self._count % NUM_VARIANTS][: num_tokens - 1], self._end)
        writer = SegmentWriter(
            self._context.journal,
            request,
            History(),
            worker="load",
            nonce=secrets.token_hex(6),
            pace=STREAMED if request.stream else Pace(),
            on_failure=lambda: None,
        )
        if num_tokens <= STREAMED_TOKENS:
            await self._sample_slowly(writer, request, ids)
        else:
            writer.put(Chunk(ids, (LOGPROB,) * len(ids), 0))
        await writer.finish(GenerationFinish.STOP)
        await delivery.ack()

    async def _sample_slowly(self, writer: SegmentWriter, request: GenerationRequested, ids: tuple[int, ...]) -> None:
        for position, token in enumerate(ids):
            await asyncio.sleep(SECONDS_PER_TOKEN)
            if not position:
                self.first_tokens[request.generation] = time.monotonic()
            writer.put(Chunk((token,), (LOGPROB,), 0))


async def main() -> None:
    async with open_context(Service.ROLLOUT_WORKER, Settings(node="load-worker"), capabilities=("rollout",)) as context:
        player = Player(context)
        queue, part = queue_stream(Service.ROLLOUT_WORKER, RUN), consumer_name(Service.ROLLOUT_WORKER, f"{TAG}.0")
        subscription = await context.bus.consume(queue, part, player.on_delivery, credit=CREDIT, priority=0)
        reply("ready")
        try:
            await context.until_stopped(_tell(player))
        finally:
            await subscription.leave()


async def _tell(player: Player) -> None:
    lines = await lines_told()
    while await lines.readline():
        told, player.first_tokens = player.first_tokens, {}
        reply(told)


if __name__ == "__main__":
    import uvloop

    os.environ["SEAMLESSFLOW_NODE"] = "load-worker"
    uvloop.run(main())
