"""The learner: packed logprobs are those of each sample alone, gradients do not depend on packing, and it learns."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow.config.run import parse_run_config
from seamlessflow.config.training_sections import AlgorithmSection
from seamlessflow.contracts import Float32s, Int32s, Sample
from seamlessflow.errors import BadInput
from seamlessflow.weights.staleness import VersionSteps
from seamlessflow_trainer.data.batch import TrainingBatch, make_batch
from seamlessflow_trainer.data.groups import TrainingGroup
from seamlessflow_trainer.learner.base import Abandoned, NotFinite
from seamlessflow_trainer.learner.learner import Learner, learning_rate_at
from seamlessflow_trainer.learner.model_loading import (
    check_architecture,
    load_learner,
    model_files,
    pick_compute_dtype,
    served_dtype,
)
from seamlessflow_trainer.steps.checkpoints import snapshot
from tests.services.trainer.trainer_world import VOCABULARY, make_tiny_llama, run_document, samples_ready

TEMPERATURE = 0.7


def a_learner(model: Path, **algorithm: object) -> Learner:
    return load_learner(model, parse_run_config(run_document(model, **algorithm)), torch.device("cpu"))


@pytest.fixture(scope="module")
def plain(tiny_llama: Path) -> object:
    """The same model by plain transformers."""
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()


def random_sample(rng: random.Random, prefix: list[int]) -> Sample:
    """Some turns behind a prefix; between one and four of them are sampled."""
    token_ids, spans = list(prefix), []
    for _ in range(rng.randint(1, 3)):
        start = len(token_ids)
        token_ids += [rng.randrange(1, 4) for _ in range(rng.randint(1, 4))]
        spans.append((start, len(token_ids)))
        token_ids += [rng.randrange(VOCABULARY) for _ in range(rng.randint(0, 2))]
    count = sum(end - start for start, end in spans)
    merged = tuple(spans)
    return Sample(
        token_ids=Int32s(token_ids),
        spans=merged,
        logprobs=Float32s([rng.uniform(-4, 0) for _ in range(count)]),
        versions=((0, count),),
    )


def random_batch(seed: int, **algorithm: object) -> TrainingBatch:
    """Two groups of three members with shared prompts, random turns and rewards."""
    rng = random.Random(seed)
    groups = []
    for name in "ab":
        prefix = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 6))]
        members = [samples_ready(name, i, [random_sample(rng, prefix)], rng.random()) for i in range(3)]
        groups.append(TrainingGroup(name, tuple(members)))
    config = parse_run_config(run_document(Path("x"), **algorithm)).algorithm
    return make_batch(groups, VersionSteps([(0, 0)]), 0, 0, config)


def logprobs_of(learner: Learner, batch: TrainingBatch) -> torch.Tensor:
    """[N] the trained tokens' logprobs as a step computes them, without learning."""
    logprobs_N = torch.zeros(batch.num_trained)
    with torch.no_grad():
        for micro in learner._micro_batches(batch.paths):
            logprobs_N[micro.tokens_K] = learner._forward(micro)
    return logprobs_N


def alone(plain: object, batch: TrainingBatch) -> torch.Tensor:
    """[N] logprobs with each sample in a forward of its own, no mask, no padding."""
    logprobs_N = torch.zeros(batch.num_trained)
    for path in (path for paths in batch.paths for path in paths):
        with torch.no_grad():
            logits = plain(input_ids=torch.tensor([list(path.token_ids)])).logits[0]  # type: ignore[operator]
        rows = torch.log_softmax(logits / TEMPERATURE, dim=-1)
        for offset, index in enumerate(path.trained):
            logprobs_N[path.first + offset] = rows[index - 1, path.token_ids[index]]
    return logprobs_N


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31), micro_batch_tokens=st.integers(4, 200))
def test_packed_logprobs_are_those_of_each_sample_alone(
    seed: int, micro_batch_tokens: int, tiny_llama: Path, plain: object
) -> None:
    """Whatever is shared, padded or split into micro-batches."""
    batch = random_batch(seed)
    packed = logprobs_of(a_learner(tiny_llama, micro_batch_tokens=micro_batch_tokens), batch)

    torch.testing.assert_close(packed, alone(plain, batch), atol=1e-5, rtol=0)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**31), micro_batch_tokens=st.integers(4, 60))
def test_a_step_does_not_depend_on_how_it_is_cut(seed: int, micro_batch_tokens: int, tiny_llama: Path) -> None:
    """One micro-batch or many: the same loss, the same gradient norm, the same new weights up to rounding."""
    whole, cut = a_learner(tiny_llama), a_learner(tiny_llama, micro_batch_tokens=micro_batch_tokens)
    batch = random_batch(seed)
    figures, cut_figures = (learner.train(batch, learning_rate=1e-3) for learner in (whole, cut))

    assert cut_figures.loss == pytest.approx(figures.loss, abs=1e-5)
    assert cut_figures.grad_norm == pytest.approx(figures.grad_norm, rel=1e-3, abs=1e-5)


def test_members_without_an_advantage_count_and_are_not_computed(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group with equal rewards makes the step's mean smaller and nothing else; its tokens never reach the model."""
    rng, settings_ = random.Random(5), parse_run_config(run_document(Path("x"))).algorithm
    teaching = [samples_ready("a", i, [random_sample(rng, [1, 2])], float(i)) for i in range(2)]
    solved = [samples_ready("b", i, [random_sample(rng, [3, 4])], 1.0) for i in range(2)]
    alone, both = (
        make_batch([TrainingGroup(m[0].origin.group, tuple(m)) for m in groups], VersionSteps([(0, 0)]), 0, 0, settings_)
        for groups in ([teaching], [teaching, solved])
    )
    learner = a_learner(tiny_llama)
    computed: list[int] = []
    forward = learner._forward
    monkeypatch.setattr(learner, "_forward", lambda micro: (computed.append(len(micro.tokens_K)), forward(micro))[1])
    share = alone.num_trained / both.num_trained
    first, second = a_learner(tiny_llama).train(alone, learning_rate=0.0), learner.train(both, learning_rate=0.0)

    assert sum(computed) == alone.num_trained < both.num_trained
    assert second.loss == pytest.approx(first.loss * share, rel=1e-4)
    assert second.grad_norm == pytest.approx(first.grad_norm * share, rel=1e-3)
    assert second.importance_ratio == pytest.approx(first.importance_ratio, rel=1e-4)


def test_a_learning_rate_of_zero_leaves_the_weights_bit_identical(tiny_llama: Path) -> None:
    """The self-check of engine against trainer relies on it."""
    learner = a_learner(tiny_llama, weight_decay=0.1)
    before = snapshot(learner.weights(), {}).weights
    learner.train(random_batch(0), learning_rate=0.0)

    assert all(torch.equal(before[name], tensor) for name, tensor in learner.weights().items())


def test_rewarded_answers_become_likelier(tiny_llama: Path) -> None:
    """The gradient has the right sign: the better of two answers gains, also on the worse one."""
    learner = a_learner(tiny_llama)
    good, bad = (
        Sample(token_ids=Int32s([3, 4, t]), spans=((2, 3),), logprobs=Float32s([-2.0]), versions=((0, 1),)) for t in (7, 8)
    )
    group = TrainingGroup("g", (samples_ready("g", 0, [good], 1.0), samples_ready("g", 1, [bad], 0.0)))
    batch = make_batch([group], VersionSteps([(0, 0)]), 0, 0, parse_run_config(run_document(tiny_llama)).algorithm)
    before = logprobs_of(learner, batch)
    learner.train(batch, learning_rate=1e-3)
    gained = logprobs_of(learner, batch) - before

    assert gained[0] > 0 and gained[0] > gained[1]


def test_going_on_from_a_checkpoint_is_exact(tiny_llama: Path) -> None:
    """Two steps, or one step, a restore into a fresh learner, and another step: the same bits."""
    straight, first, resumed = (a_learner(tiny_llama) for _ in range(3))
    for batch in (random_batch(1), random_batch(2)):
        straight.train(batch, learning_rate=1e-2)
    first.train(random_batch(1), learning_rate=1e-2)
    kept = snapshot(first.weights(), first.optimizer_state())
    first.train(random_batch(3), learning_rate=1e-2)  # the copy does not change with its original
    resumed.restore(kept.weights, kept.optimizer_state)
    resumed.train(random_batch(2), learning_rate=1e-2)

    expected = straight.weights()
    assert all(torch.equal(expected[name], tensor) for name, tensor in resumed.weights().items())


def test_a_gradient_that_is_not_finite_changes_nothing(tiny_llama: Path) -> None:
    """The message says where to look."""
    learner = a_learner(tiny_llama)
    batch = random_batch(0)
    batch.advantages_N[0] = float("inf")
    before = snapshot(learner.weights(), {}).weights
    with pytest.raises(NotFinite, match="verifiers"):
        learner.train(batch, learning_rate=1e-2)

    assert all(torch.equal(before[name], tensor) for name, tensor in learner.weights().items())
    assert learner.train(random_batch(0), learning_rate=1e-2).grad_norm > 0


def test_a_step_can_be_given_up(tiny_llama: Path) -> None:
    """Between two micro-batches; nothing was changed."""
    learner, stop = a_learner(tiny_llama), threading.Event()
    before = snapshot(learner.weights(), {}).weights
    stop.set()
    with pytest.raises(Abandoned):
        learner.train(random_batch(0), learning_rate=1e-2, should_stop=stop.is_set)

    assert all(torch.equal(before[name], tensor) for name, tensor in learner.weights().items())


def test_another_models_checkpoint_is_refused(tiny_llama: Path) -> None:
    """Names on one side only."""
    learner = a_learner(tiny_llama)
    with pytest.raises(BadInput, match="another model"):
        learner.restore({"odd.weight": torch.zeros(1)}, {})


def test_weights_have_the_names_of_the_models_own_file(tiny_llama: Path) -> None:
    """Tied tensors once, so that whoever loads them finds neither too many nor too few."""
    from safetensors import safe_open

    with safe_open(tiny_llama / "model.safetensors", "pt") as file:
        assert sorted(a_learner(tiny_llama).weights()) == sorted(file.keys())


def test_warm_up_is_linear_then_constant() -> None:
    """Step 1 already learns."""
    warm = AlgorithmSection(steps=20, learning_rate=4.0, warmup_steps=4)
    falling = AlgorithmSection(steps=20, learning_rate=4.0, decay="linear")

    assert [learning_rate_at(s, warm) for s in (1, 2, 4, 9)] == [1.0, 2.0, 4.0, 4.0]
    assert [learning_rate_at(s, falling) for s in (10, 20)] == pytest.approx([2.2, 0.4])


def test_a_model_that_scales_its_logits_is_refused(tiny_llama: Path) -> None:
    """Its output layer over its body is not what it says, so its logprobs would be wrong."""
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    original = model.forward

    def scaled(*args: object, **kwargs: object) -> object:
        output = original(*args, **kwargs)
        output.logits = output.logits * 3
        return output

    model.forward = scaled
    with pytest.raises(BadInput, match="cannot be trained yet"):
        check_architecture(model, "odd")


def test_the_model_folder_says_the_served_precision(tmp_path: Path) -> None:
    """Config, tokenizer and generation config travel; weights do not; auto means the base model's own precision."""
    folder = make_tiny_llama(tmp_path / "bf16", dtype=torch.bfloat16)
    assert served_dtype(folder, "auto") is torch.bfloat16
    files = model_files(folder, torch.float32)

    assert b'"dtype": "float32"' in files["config.json"]
    assert {"generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= set(files)
    assert not any(name.endswith(".safetensors") for name in files)


def test_float32_is_computed_in_float32() -> None:
    """What is served in float32 is sampled in float32: the trainer must not be coarser."""
    assert pick_compute_dtype(torch.device("cpu"), torch.float32) is torch.float32
    assert pick_compute_dtype(torch.device("cpu"), torch.bfloat16) in (torch.bfloat16, torch.float32)
