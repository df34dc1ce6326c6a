"""The self-check of an engine finds nothing wrong with one that is right, and says of each wrong one what is wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from seamlessflow.cli.doctor_engine import Wanted, document_of
from seamlessflow.engine_check import EngineOrder, EngineReport, TrainerOrder, judge
from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker import engine_check as rollout
from seamlessflow_rollout_worker.engines.base import Chunk, SamplingParams

pytest.importorskip("torch")

from seamlessflow.models import make_tiny
from seamlessflow_rollout_worker.engine_check import write_model
from seamlessflow_rollout_worker.engines.transformers.decode_batch import DecodeBatch
from seamlessflow_rollout_worker.engines.transformers.engine import TransformersEngine
from seamlessflow_trainer import engine_check as trainer

TOKENS = 32


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny", 0, warm_start_steps=1)


def order_of(tiny: Path, scratch: Path) -> EngineOrder:
    wanted = Wanted("transformers", str(tiny), "auto", TOKENS, 0.8, 60.0)
    prompts = ("What is 1+2?", "What is 31-7?", "Say b.")
    document = document_of(wanted)
    return EngineOrder(document=document, folder=tiny, scratch=scratch, prompts=prompts, num_tokens=TOKENS, temperature=0.8)


async def wrong_checks(tiny: Path, scratch: Path) -> list[str]:
    """Names of the checks that are not right, after an engine's and a trainer's part."""
    order = order_of(tiny, scratch)
    report = await rollout.run(order)
    base, other = scratch / "base", scratch / "other"
    question = TrainerOrder(
        document=order.document,
        base=base,
        other=other,
        drawn=report.drawn,
        temperature=order.temperature,
        greedy=report.first,
        greedy_of_other=report.other,
    )
    return [check.name for check in judge(report, trainer.run(question)) if check.is_right is False]


async def test_our_engine_is_all_right(tiny: Path, tmp_path: Path):
    """float32: the trainer agrees to rounding, and a step at learning rate 0 changes nothing."""
    assert await wrong_checks(tiny, tmp_path) == []


class NeverLoads(TransformersEngine):
    """Says the new version and keeps the old weights: a label without a load."""

    async def load_weights(self, file: Path, *, weights_version: int) -> None:
        thread = self._alive()
        await self._run_in(thread, lambda: setattr(thread, "weights_version", weights_version))


class SaysTheOldVersion(TransformersEngine):
    """The first token after an update has the version before it."""

    async def generate(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[Chunk]:
        last = self.weights_version
        async for chunk in super().generate(request_id, prompt_ids, params):
            said, last = last, chunk.weights_version
            yield replace(chunk, weights_version=said)


class ForgetsTemperature(TransformersEngine):
    """Draws at the one that was asked for, and reports logprobs of another."""

    async def generate(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[Chunk]:
        async for chunk in super().generate(request_id, prompt_ids, params):
            wrong = params.temperature or 1.0
            yield replace(chunk, logprobs=tuple(each * wrong for each in chunk.logprobs))


class SaysNoNumber(TransformersEngine):
    """Its logprobs are none."""

    async def generate(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[Chunk]:
        async for chunk in super().generate(request_id, prompt_ids, params):
            yield replace(chunk, logprobs=(float("nan"),) * len(chunk.logprobs))


class EndsWhatRuns(TransformersEngine):
    """Every update is the end of what it meets."""

    async def load_weights(self, file: Path, *, weights_version: int) -> None:
        await super().load_weights(file, weights_version=weights_version)
        for request_id in [*self._outbox._tickets]:
            await self.interrupt(request_id)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (NeverLoads, "logprobs against the trainer's, after an update to other weights"),
        (SaysTheOldVersion, "generations whose tokens have the version that drew them"),
        (ForgetsTemperature, "logprobs against the trainer's, drawn at a temperature"),
        (SaysNoNumber, "logprobs against the trainer's, greedy"),
        (EndsWhatRuns, "generations that an update in their middle ended"),
    ],
)
async def test_what_is_wrong_is_said(
    kind: type[TransformersEngine], told: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Other checks may fail with it; the one that is for it does."""
    monkeypatch.setattr(rollout, "build_engine", lambda config, settings, folder: kind(dtype="float32", num_slots=8))

    assert any(name.startswith(told) for name in await wrong_checks(tiny, tmp_path))


async def test_servers_that_go_on_running_have_the_model_that_was_asked_for(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The engine may be somebody's server, which keeps what it was given last: not the weights with noise."""
    given: list[str] = []

    class Noted(TransformersEngine):
        async def start(self, model_dir: Path, *, weights_version: int) -> None:
            given.append(model_dir.name)
            await super().start(model_dir, weights_version=weights_version)

        async def load_weights(self, file: Path, *, weights_version: int) -> None:
            given.append(file.parent.name)
            await super().load_weights(file, weights_version=weights_version)

    monkeypatch.setattr(rollout, "build_engine", lambda config, settings, folder: Noted(dtype="float32", num_slots=8))
    await rollout.run(order_of(tiny, tmp_path))

    assert given[-2:] == ["other", "base"]


async def test_a_cache_that_outlives_its_weights_is_found(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The same prompts come before and after the update: an engine that keeps its prefixes answers from other weights."""
    monkeypatch.setattr(DecodeBatch, "forget_cache", lambda self: None)

    found = await wrong_checks(tiny, tmp_path)

    assert any(name.startswith("other weights, updated to against freshly loaded") for name in found)


def test_weights_are_served_in_one_precision_and_the_others_are_still_a_model(tiny: Path, tmp_path: Path):
    """One file, config.json says the precision; noise changes matrices and leaves vectors alone."""
    from safetensors.torch import load_file

    base = write_model(tiny, tmp_path / "base", "bfloat16")
    other = write_model(tiny, tmp_path / "other", "bfloat16", noise=0.05)

    assert json.loads((base / "config.json").read_text())["dtype"] == "bfloat16"
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (base, other))
    assert {str(tensor.dtype) for tensor in ours.values()} == {"torch.bfloat16"}
    changed = {name for name in ours if not ours[name].equal(theirs[name])}
    assert changed == {name for name, tensor in ours.items() if tensor.ndim > 1}
    with pytest.raises(BadInput, match="safetensors"):
        write_model(tmp_path, tmp_path / "nothing", "float32")


def test_a_process_of_the_check_writes_its_report_or_says_why_not(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Exit code 2 and one line for a model that cannot be served."""
    (tmp_path / "models").mkdir()
    order = order_of(tiny, tmp_path / "models")
    files = [tmp_path / "order.json", tmp_path / "report.json"]
    files[0].write_text(order.model_dump_json())

    assert rollout.main([str(file) for file in files]) == 0
    assert len(EngineReport.model_validate_json(files[1].read_text()).first) == 3
    files[0].write_text(order.model_copy(update={"folder": tmp_path}).model_dump_json())
    assert rollout.main([str(file) for file in files]) == 2
    assert "BadInput" in capsys.readouterr().err
