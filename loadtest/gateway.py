"""The data plane between agents and engines, with everything durable, beside other gateways in the same run on two cores.

Every side answers the same calls and has an upstream that answers at once: a stub server for the peers, a player of
rollout-workers over the bus for us. ``small``: 500 tokens in and 200 out, each in a session of its own. ``large``: turns of a
conversation that has grown to about 30,000 tokens, 1,000 out. Latencies are added ones: the bare stub's are taken off.
The conversation before the measured turns is sent to us turn by turn, and put into the bodies of the others, who keep none.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import uvloop

from loadtest import trees
from loadtest.gateway_child import Child
from loadtest.gateway_client import Client
from loadtest.gateway_figures import BARE, OURS, Measured, Side, figures_of
from loadtest.gateway_load import Conversation, Endpoint, Load, sequential, throughput
from loadtest.gateway_ours import Ours
from loadtest.gateway_peers import PEERS, RunningPeer
from loadtest.gateway_worker import STREAMED_TOKENS
from loadtest.report import Figure, arguments, publish
from seamlessflow.errors import Unavailable

NUM_CORES = 2
SMALL = Load("small", 500, 200)
STREAMED = Load("streamed", 500, STREAMED_TOKENS)
LARGE = Load("large", 500, 1000, warm_turns=17, turns=6)
"""Prompts of 26,000 to 33,500 tokens."""
FIRST_TEXT = re.compile(rb'"content":\s?"[^"]')
CALL_ID = re.compile(rb'"id":\s?"chatcmpl-([^"]+)"')


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=3, help="the median counts")
    parser.add_argument("--calls", type=int, default=200, help="small ones, one after the other")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--each", type=int, default=25, help="small calls of each of those in flight")
    parser.add_argument("--conversations", type=int, default=4, help="large ones, one after the other")
    parser.add_argument("--streams", type=int, default=50, help="streamed answers, one after the other")
    parser.add_argument("--episodes", type=int, default=10_000, help="open at once, for the manager's memory")
    parser.add_argument("--peers", nargs="*", default=[peer.name for peer in PEERS], metavar="NAME", help="none: without")
    options = parser.parse_args(argv)
    large = LARGE
    if options.quick:
        options.runs, options.calls, options.in_flight, options.each = 1, 5, 4, 2
        options.conversations, options.streams, options.episodes, options.peers = 1, 2, 10, []
        large = Load("large", 500, 1000, warm_turns=1, turns=1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_CORES])  # what is started from here on inherits it
    with tempfile.TemporaryDirectory() as scratch:
        figures = uvloop.run(_measure(Path(scratch), options, (SMALL, large)))
    figures |= trees.figures(options.episodes, quick=options.quick)
    publish("gateway", figures, options.results)


async def _measure(folder: Path, options: argparse.Namespace, loads: tuple[Load, ...]) -> dict[str, Figure]:
    async with AsyncExitStack() as stack:
        stub = await Child.start([sys.executable, "-m", "loadtest.gateway_stub"], os.environ, folder / "stub.log")
        stack.push_async_callback(stub.stop)
        url = (await stub.heard())["url"]
        ours = await Ours.open(folder)
        stack.push_async_callback(ours.close)
        peers = [peer async for peer in _open_peers(options.peers, folder, url, stack)]

        async def bare(count: int) -> list[Endpoint]:
            return [Endpoint(f"{url}/v1/chat/completions", "none")] * count

        sides = [
            Side(BARE, bare, records=False),
            Side(OURS, ours.endpoints, remembers=True),
            *(Side(peer.name, peer.endpoints, peer.records) for peer in peers),
        ]
        measured = {(side.name, load.name): Measured() for side in sides for load in loads}
        first_tokens: tuple[list[float], list[float]] = ([], [])
        for run in range(options.runs):
            for side in sides:
                for load in loads:
                    try:
                        await _take(measured[side.name, load.name], side, load, options, seed=run * 1_000_000)
                    except (TimeoutError, RuntimeError):
                        ours.check()  # says more than that an answer did not come
                        raise
            for values, value in zip(first_tokens, await _first_token(ours, options.streams, run), strict=True):
                values.append(value)
    return figures_of(measured, sides, loads) | {
        "stream_first_token_p50_ms": Figure("ms", "lower", first_tokens[0], "whole answer", first_tokens[1], goal=10.0)
    }


async def _open_peers(names: Iterable[str], folder: Path, stub: str, stack: AsyncExitStack) -> AsyncIterator[RunningPeer]:
    for peer in PEERS:
        if peer.name in names:
            (home := folder / peer.name).mkdir()
            try:
                running = await RunningPeer.open(peer, home, stub)
            except Unavailable as wrong:
                print(f"missing: {wrong}", flush=True)
                continue
            stack.push_async_callback(running.close)
            yield running


async def _take(into: Measured, side: Side, load: Load, options: argparse.Namespace, seed: int) -> None:
    num_calls, each = (options.calls, options.each) if load.turns == 1 and not load.warm_turns else (options.conversations, 1)
    times = await sequential(side.endpoints, load, num_calls, seed, leads=side.remembers)
    into.milliseconds.append(median(times))
    into.per_second.append(
        await throughput(side.endpoints, load, options.in_flight, each, seed + 500_000, leads=side.remembers)
    )
    print(
        f"{side.name:20} {load.name:6} {into.milliseconds[-1]:8.2f} ms {into.per_second[-1]:8.0f}/s"
        f"   load average {os.getloadavg()[0]:.1f}",
        flush=True,
    )


async def _first_token(ours: Ours, num_streams: int, run: int) -> tuple[float, float]:
    """Milliseconds (p50) from an engine's first token to its text at the agent, and to the end of the answer."""
    shown, ended = {}, {}
    endpoints = await ours.endpoints(num_streams)
    client = await Client.open(endpoints[0].url)
    for number, endpoint in enumerate(endpoints):
        body = await client.call(
            Conversation(endpoint, STREAMED, 900_000 + run * 1000 + number, stream=True).request(), FIRST_TEXT
        )
        found = CALL_ID.search(body)
        assert found is not None, "a streamed answer without an id"
        shown[found[1].decode()], ended[found[1].decode()] = client.marked_at, client.ended_at
    client.close()
    left = await ours.first_tokens()
    return _p50_since(left, shown), _p50_since(left, ended)


def _p50_since(left: dict[str, float], came: dict[str, float]) -> float:
    """Milliseconds."""
    return median(1e3 * (at - left[call]) for call, at in came.items())


if __name__ == "__main__":
    main()
