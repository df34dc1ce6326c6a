"""The remote engine on a real ``vllm serve`` on a CPU: one server, a tiny Llama in float32, both of vLLM's dialects.

What is promised is judged by a full forward pass of transformers with the very weights that each token is stamped with.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import Chunk, Finish
from seamlessflow_rollout_worker.engines.remote.engine import RemoteEngine
from seamlessflow_rollout_worker.engines.remote.options import RemoteOptions
from tests.services.engines.conftest import FIRST_VERSION, LONG_CONTEXT, PROMPT, Answer, joined, params, sample

pytest.importorskip("vllm", reason="vLLM is not installed here; ./task test:vllm runs these tests")
pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[3]
START_SECONDS = 300.0
"""Half a minute on two cores that have nothing else to do; most of it is importing."""
TOLERANCE = 2e-4
"""Of logprobs in float32 with logits as wide as these."""
LONG_ANSWER = 800


@pytest.fixture(scope="module")
def url(tied_llamas: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "serve.log"
    arguments = [
        "--model",
        str(tied_llamas[0]),
        "--dtype",
        "float32",
        "--max-model-len",
        str(LONG_CONTEXT),
        "--port",
        str(port),
    ]
    arguments += ["--host", "127.0.0.1", "--enable-scale-out", "--skip-tokenizer-init", "--enforce-eager"]
    arguments += ["--worker-extension-cls", "seamlessflow_rollout_worker.engines.vllm.worker_extension.LoadsFromFile"]
    environment = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # threads bound to all cores would wait in loops beside another file's engine
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    with log.open("w") as output:
        server = subprocess.Popen(
            # What `vllm serve` runs; the command itself looks for a package of another name than vllm-cpu's.
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments],
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _await(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _await(health: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(health, timeout=2):
            return
        time.sleep(0.5)
    pytest.fail(f"vllm serve did not start:\n{log.read_text()[-3000:]}")


@pytest.fixture(params=["vllm", "completions"])
async def engine(request: pytest.FixtureRequest, url: str, tied_llamas: list[Path]) -> AsyncIterator[RemoteEngine]:
    made = RemoteEngine(
        [url],
        RemoteOptions.of({"api": request.param, "loader": "load_from_file"}),
        temperature=1.0,
        top_p=1.0,
        num_slots=16,
        max_context_tokens=LONG_CONTEXT,
    )
    await made.start(tied_llamas[0], weights_version=FIRST_VERSION)
    yield made
    await made.stop()


def full_forward(folder: Path, prompt: list[int], ids: list[int]) -> list[float]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    logprobs: list[float] = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1).tolist()
    return logprobs


def num_running(url: str) -> int:
    """As the server counts."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as response:
        counts = re.findall(r"^vllm:num_requests_running\{[^}]*\} ([0-9.]+)$", response.read().decode(), re.MULTILINE)
    return int(sum(map(float, counts)))


async def test_its_own_reload_is_refused_where_it_would_keep_the_old_output_layer(url: str, tied_llamas: list[Path]) -> None:
    """On a CPU, for a model whose output layer is its input layer: every token would be drawn by half of each.

    First of all: what our loader packed once, vLLM's own reload packs again.
    """
    await _refused(url, tied_llamas[1], "samples as if it had not, or not all of them", temperature=1.0)


async def test_new_weights_in_the_middle_of_eight_requests_stamp_every_token_exactly(
    engine: RemoteEngine, tied_llamas: list[Path]
) -> None:
    """Each token's logprob is the one of the version it names, and all requests are as long as they should be.

    Updated again and again until one met requests in their middle: so small a model is fast, and a busy machine is late.
    """
    for version in range(FIRST_VERSION, FIRST_VERSION + 20):
        old, new = tied_llamas[(version - FIRST_VERSION) % 2], tied_llamas[(version + 1 - FIRST_VERSION) % 2]
        answers, before = await _update_under_way(engine, new, version + 1)
        for answer, num in zip(answers, before, strict=True):
            assert answer.versions == [version] * num + [version + 1] * (100 - num)
        if any(0 < num < 100 for num in before):
            break
    else:
        pytest.fail("no update came in the middle of a request")
    for answer, num in zip(answers, before, strict=True):
        told = [full_forward(folder, PROMPT, answer.ids) for folder in (old, new)]
        assert answer.logprobs == pytest.approx(told[0][:num] + told[1][num:], abs=TOLERANCE)


async def _update_under_way(engine: RemoteEngine, folder: Path, version: int) -> tuple[list[Answer], list[int]]:
    """The answers of eight requests that an update came upon, and how many tokens of each there were by then."""

    async def read(place: int) -> None:
        async for chunk in engine.generate(f"r{place}", PROMPT, params(max_tokens=100, seed=place)):
            chunks[place].append(chunk)

    chunks: list[list[Chunk]] = [[] for _ in range(8)]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for place in range(8):
            group.create_task(read(place))
        while not any(chunks):
            await asyncio.sleep(0.005)
        await engine.pause()
        before = [len(joined(each).ids) for each in chunks]
        await engine.load_weights(folder / "model.safetensors", weights_version=version)
        await engine.resume()
    return [joined(each) for each in chunks], before


async def test_a_prompt_repeated_after_an_update_is_computed_by_the_new_weights(
    engine: RemoteEngine, tied_llamas: list[Path]
) -> None:
    """No cached prefix outlives the weights that computed it."""
    prompt = PROMPT * 10
    await sample(engine, prompt)
    await engine.pause()
    await engine.load_weights(tied_llamas[1] / "model.safetensors", weights_version=FIRST_VERSION + 1)
    await engine.resume()
    again = await sample(engine, prompt)

    assert again.logprobs == pytest.approx(full_forward(tied_llamas[1], prompt, again.ids), abs=TOLERANCE)


async def test_an_interrupted_answer_goes_on_as_it_would_have(engine: RemoteEngine, url: str) -> None:
    """Greedily, so that the same text must come; the server does not go on with what was interrupted.

    Again and again until one was interrupted before its end.
    """
    whole = await sample(engine, temperature=0.0, max_tokens=LONG_ANSWER)
    for _ in range(30):
        begun = await _interrupted(engine)
        if len(begun.ids) < LONG_ANSWER:
            break
    assert begun.finish is Finish.INTERRUPTED
    assert begun.ids == whole.ids[: len(begun.ids)]
    rest = await sample(engine, PROMPT + begun.ids, temperature=0.0, max_tokens=LONG_ANSWER - len(begun.ids))

    assert begun.ids + rest.ids == whole.ids
    await _until_nothing_runs(engine, url)


async def _until_nothing_runs(engine: RemoteEngine, url: str) -> None:
    """The server counts anew with each of its steps, so it is given some."""
    async with asyncio.timeout(10):
        while num_running(url):
            await sample(engine, max_tokens=2)
            await asyncio.sleep(0.05)


async def _interrupted(engine: RemoteEngine) -> Answer:
    """What came of LONG_ANSWER greedy tokens that were interrupted at the first one."""
    chunks: list[Chunk] = []
    interrupting: asyncio.Task[None] | None = None
    async for chunk in engine.generate("cut", PROMPT, params(temperature=0.0, max_tokens=LONG_ANSWER)):
        interrupting = interrupting or asyncio.create_task(engine.interrupt("cut"))
        chunks.append(chunk)
    assert interrupting is not None
    await interrupting
    return joined(chunks)


async def test_a_stop_token_is_reported_and_is_the_last_one(engine: RemoteEngine) -> None:
    """Whatever the model's own files say about where it ends."""
    whole = await sample(engine, temperature=0.0)
    stop = whole.ids[4]
    answer = await sample(engine, temperature=0.0, stop_token_ids=(stop,))

    assert answer.ids == whole.ids[: whole.ids.index(stop) + 1]
    assert answer.finish is Finish.STOP


async def test_a_run_whose_logprobs_this_server_cannot_tell_is_refused(url: str, tied_llamas: list[Path]) -> None:
    """vLLM's are before temperature unless it was told otherwise; the meaning was found out by trying."""
    await _refused(url, tied_llamas[0], "before temperature", temperature=0.7, loader="load_from_file")


async def _refused(url: str, folder: Path, why: str, *, temperature: float, **options: str) -> None:
    engine = RemoteEngine([url], RemoteOptions.of(options), temperature=temperature, top_p=1.0)
    with pytest.raises(BadInput, match=why):
        await engine.start(folder, weights_version=FIRST_VERSION)
    await engine.stop()


async def test_a_closed_iterator_ends_its_request_at_the_server(engine: RemoteEngine, url: str) -> None:
    """A caller that goes away leaves nothing running."""
    stream = engine.generate("gone", PROMPT, params(max_tokens=110))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    await _until_nothing_runs(engine, url)
