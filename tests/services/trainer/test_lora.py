"""A learner of adapters: only they learn, they are what is published, and merged they compute what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load, load_file
from torch import Tensor

from seamlessflow.config.run import parse_run_config
from seamlessflow.contracts import Float32s, Int32s, Sample
from seamlessflow.errors import BadInput, Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, publish_folder, weights_path
from seamlessflow.weights.adapters import ADAPTER_FILE, AdapterFacts
from seamlessflow.weights.fetch import fetch_version
from seamlessflow.weights.staleness import VersionSteps
from seamlessflow_trainer.data.batch import TrainingBatch, make_batch
from seamlessflow_trainer.data.groups import TrainingGroup
from seamlessflow_trainer.learner import model_loading
from seamlessflow_trainer.learner.lora import AdapterLearner, MergedLayer
from seamlessflow_trainer.learner.model_loading import load_learner
from seamlessflow_trainer.steps.checkpoints import snapshot
from seamlessflow_trainer.weights.lora_versions import AdapterVersionBuilder, publish_base
from tests.services.trainer.trainer_world import RUN, VOCABULARY, make_tiny_llama, run_document, samples_ready

TEMPERATURE = 0.7
RANK = 3
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def lora_learner(model: Path, seed: int = 0, dtype: str = "auto", **lora: object) -> AdapterLearner:
    document = run_document(model) | {"seed": seed, "lora": {"rank": RANK, "alpha": 6, **lora}}
    document["model"]["dtype"] = dtype
    learner = load_learner(model, parse_run_config(document), torch.device("cpu"))
    assert isinstance(learner, AdapterLearner)
    return learner


def a_batch(seed: int) -> TrainingBatch:
    """Two groups of three members: a prompt, six sampled tokens, a reward."""
    stream = torch.Generator().manual_seed(seed)
    groups = []
    for name in "ab":
        rows = torch.randint(VOCABULARY, (3, 10), generator=stream)
        rows[:, :4] = rows[0, :4]
        logprobs = -4 * torch.rand(3, 6, generator=stream)
        samples = [
            Sample(token_ids=Int32s(row), spans=((4, 10),), logprobs=Float32s(before), versions=((0, 6),))
            for row, before in zip(rows.tolist(), logprobs.tolist(), strict=True)
        ]
        members = [samples_ready(name, i, [sample], float(i)) for i, sample in enumerate(samples)]
        groups.append(TrainingGroup(name, tuple(members)))
    return make_batch(groups, VersionSteps([(0, 0)]), 0, 0, parse_run_config(run_document(Path("x"))).algorithm)


def logprobs_of(learner: AdapterLearner, batch: TrainingBatch) -> Tensor:
    """[N] the trained tokens' logprobs as a step computes them."""
    logprobs_N = torch.zeros(batch.num_trained)
    with torch.no_grad():
        for micro in learner._micro_batches(batch.paths):
            logprobs_N[micro.tokens_K] = learner._forward(micro)
    return logprobs_N


@torch.no_grad()
def logprobs_by(model: Any, batch: TrainingBatch) -> Tensor:
    """[N] the same by a plain model, each sample alone."""
    logprobs_N = torch.zeros(batch.num_trained)
    for path in (path for paths in batch.paths for path in paths):
        logits = model(input_ids=torch.tensor([list(path.token_ids)])).logits[0].float()
        rows = torch.log_softmax(logits / TEMPERATURE, dim=-1)
        for offset, index in enumerate(path.trained):
            logprobs_N[path.first + offset] = rows[index - 1, path.token_ids[index]]
    return logprobs_N


def plain(folder: Path, weights: dict[str, Tensor] | None = None, dtype: torch.dtype = torch.float32) -> Any:
    """The model by transformers alone; weights None: its own."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    if weights is not None:
        unexpected = model.load_state_dict(weights, strict=False).unexpected_keys
        assert not unexpected
    return model


class Published:
    """A store with a learner's base and versions."""

    def __init__(self, folder: Path, learner: AdapterLearner, dtype: torch.dtype) -> None:
        self.store, self.folder, self.learner = Store(f"file://{folder}/store"), folder, learner
        base = publish_base(self.store, RUN, learner.base_weights(), dtype)
        self.maker, self.newest = AdapterVersionBuilder(AdapterFacts(*base, learner.adapter_config)), -1

    def publish(self) -> Path:
        """The folder of the next version, on this machine."""
        self.newest += 1
        files = self.maker.make(self.learner.weights(), version=self.newest, step=0, newest=self.newest - 1)
        publish_folder(self.store, weights_path(RUN, self.newest), files.contents(), files.facts)
        return self.folder / "store" / weights_path(RUN, self.newest)

    def fetched(self) -> dict[str, Tensor]:
        """The newest version as an engine loads it."""
        here = self.folder / "here"
        fetch_version(self.store, weights_path(RUN, self.newest), self.newest, here, bases=self.folder / "bases")
        return load((here / WEIGHTS_FILE).read_bytes())


def trained(learner: AdapterLearner, *, steps: int = 3, learning_rate: float = 3e-2) -> AdapterLearner:
    for seed in range(steps):
        learner.train(a_batch(seed), learning_rate=learning_rate)
    return learner


def test_before_the_first_step_the_adapters_change_nothing(tiny_llama: Path, tmp_path: Path) -> None:
    """One half of each is zero: version 0 is the base."""
    learner, batch = lora_learner(tiny_llama), a_batch(0)
    torch.testing.assert_close(logprobs_of(learner, batch), logprobs_by(plain(tiny_llama), batch), atol=1e-5, rtol=0)

    published = Published(tmp_path, learner, torch.float32)
    published.publish()
    base, fetched = load_file(tiny_llama / "model.safetensors"), published.fetched()
    assert base.keys() == fetched.keys() and all(torch.equal(base[name], fetched[name]) for name in base)


def test_only_the_adapters_learn(tiny_llama: Path) -> None:
    """Two for each linear layer but the output layer; all else stays bit for bit, and has no optimiser state."""
    learner = lora_learner(tiny_llama)
    base, before = snapshot(learner.base_weights(), {}).weights, snapshot(learner.weights(), {}).weights
    trained(learner)
    after, again = learner.weights(), learner.base_weights()

    assert len(after) == 2 * 2 * len(LINEAR)  # two layers
    assert not any(torch.equal(before[name], after[name]) for name in after)
    assert base.keys() == again.keys() == load_file(tiny_llama / "model.safetensors").keys()
    assert all(torch.equal(base[name], again[name]) for name in base)
    state = learner.optimizer_state()
    assert len(state) == 3 * len(after) + 1 and all("lora_" in name for name in state if name != "rng.cpu")


def test_what_is_merged_computes_what_was_trained(tiny_llama: Path, tmp_path: Path) -> None:
    """After steps that moved the policy far: in float32 the same logprobs, up to rounding."""
    learner, batch = trained(lora_learner(tiny_llama)), a_batch(9)
    published = Published(tmp_path, learner, torch.float32)
    published.publish()
    ours = logprobs_of(learner, batch)

    torch.testing.assert_close(ours, logprobs_by(plain(tiny_llama, published.fetched()), batch), atol=2e-5, rtol=0)
    assert (ours - logprobs_by(plain(tiny_llama), batch)).abs().mean() > 0.1


def test_what_a_worker_merges_is_what_torch_merges(tmp_path: Path) -> None:
    """In bfloat16, bit for bit, version after version: nothing is built upon."""
    folder = make_tiny_llama(tmp_path / "model", dtype=torch.bfloat16)
    learner, base = lora_learner(folder), load_file(folder / "model.safetensors")
    published = Published(tmp_path, learner, torch.bfloat16)
    for _ in range(3):
        trained(learner, steps=1)
        adapter = load_file(published.publish() / ADAPTER_FILE)
        wanted = dict(base)
        for name in adapter:
            if ".lora_A." in name:
                update = adapter[name.replace("lora_A", "lora_B")].double() @ adapter[name].double()
                layer = name.removeprefix("base_model.model.").replace(".lora_A", "")
                wanted[layer] = (base[layer].double() + 6 / RANK * update).to(torch.bfloat16)
        fetched = published.fetched()

        assert fetched.keys() == wanted.keys() and all(torch.equal(fetched[name], wanted[name]) for name in wanted)
        assert not all(torch.equal(fetched[name], base[name]) for name in base)


@pytest.mark.parametrize("compute", [torch.bfloat16, torch.float32])
def test_what_is_trained_is_what_is_served_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: torch.dtype
) -> None:
    """In bfloat16: the trainer's layers have the very values that a worker hands to its engine, whatever it multiplies in."""
    monkeypatch.setattr(model_loading, "pick_compute_dtype", lambda device, served: compute)
    folder = make_tiny_llama(tmp_path / "model", dtype=torch.bfloat16)
    learner = trained(lora_learner(folder))
    published = Published(tmp_path, learner, torch.bfloat16)
    published.publish()
    fetched, layers = published.fetched(), dict(learner._model.named_modules())

    for name in (name for name in fetched if name.removesuffix(".weight").endswith(LINEAR)):
        own = layers[name.removesuffix(".weight")].forward._merged_OI
        assert own.dtype is compute and torch.equal(own, fetched[name].to(compute))


@pytest.mark.parametrize("served", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_base_and_adapter_merged(served: torch.dtype) -> None:
    """As autograd has them for x (W + scale B A)', whose weights are rounded: through the rounding as if there were none."""
    torch.manual_seed(0)
    weight, bias, x = torch.randn(5, 7).to(served).float(), torch.randn(5), torch.randn(2, 3, 7, requires_grad=True)
    a, b = torch.randn(2, 7, requires_grad=True), torch.randn(5, 2, requires_grad=True)
    layer = MergedLayer(weight, bias, a, b, 1.5)
    layer.merge(served)
    whole = weight + 1.5 * b @ a
    rounded = whole + (whole.detach().to(served).float() - whole.detach())
    wanted = torch.nn.functional.linear(x, rounded, bias)
    direction = torch.randn_like(wanted)

    torch.testing.assert_close(layer(x), wanted)
    ours = torch.autograd.grad((layer(x) * direction).sum(), (x, a, b))
    for own, other in zip(ours, torch.autograd.grad((wanted * direction).sum(), (x, a, b)), strict=True):
        torch.testing.assert_close(own, other)


def test_peft_loads_a_version_as_it_is(tiny_llama: Path, tmp_path: Path) -> None:
    """Its folder is an adapter for anybody who has the base."""
    learner, batch = trained(lora_learner(tiny_llama, target_modules=["q_proj", "down_proj"])), a_batch(9)
    folder = Published(tmp_path, learner, torch.float32).publish()
    theirs = peft.PeftModel.from_pretrained(plain(tiny_llama), folder).eval()

    assert len(learner.weights()) == 2 * 2 * 2
    torch.testing.assert_close(logprobs_by(theirs, batch), logprobs_of(learner, batch), atol=2e-5, rtol=0)


def test_the_base_is_what_is_served(tiny_llama: Path) -> None:
    """A float32 model that is served in bfloat16 is trained as it is served, not as it was; positions stay exact."""
    learner = lora_learner(tiny_llama, dtype="bfloat16")
    base = load_file(tiny_llama / "model.safetensors")

    for name, tensor in learner.base_weights().items():
        assert torch.equal(tensor.float(), base[name].to(torch.bfloat16).float())
    assert all(tensor.dtype is torch.float32 for tensor in learner.weights().values())
    assert all(each.dtype is torch.float32 for each in learner._model.buffers())


def test_going_on_from_a_checkpoint_is_exact(tiny_llama: Path) -> None:
    """It holds the adapters alone; two steps, or one, a restore into a fresh learner with other adapters, and another one."""
    straight, first, resumed = lora_learner(tiny_llama), lora_learner(tiny_llama), lora_learner(tiny_llama, seed=7)
    for seed in (1, 2):
        straight.train(a_batch(seed), learning_rate=1e-2)
    first.train(a_batch(1), learning_rate=1e-2)
    kept = snapshot(first.weights(), first.optimizer_state())
    resumed.restore(kept.weights, kept.optimizer_state)
    resumed.train(a_batch(2), learning_rate=1e-2)

    expected = straight.weights()
    assert all(torch.equal(expected[name], tensor) for name, tensor in resumed.weights().items())


def test_the_seed_of_the_run_decides_where_adapters_begin(tiny_llama: Path) -> None:
    """The same for the same seed, whatever was drawn before; and drawing them disturbs nobody else's stream."""
    torch.manual_seed(5)
    one = lora_learner(tiny_llama, seed=1).weights()
    after = torch.get_rng_state()
    torch.manual_seed(6)
    same, other = lora_learner(tiny_llama, seed=1).weights(), lora_learner(tiny_llama, seed=2).weights()
    torch.manual_seed(5)

    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(after, torch.get_rng_state())


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (["no_such_layer"], r"lora\.target_modules .*no_such_layer.*Name linear layers, or set \"all-linear\""),
        (["embed_tokens"], r"embed_tokens is of type Embedding; adapters are for linear layers"),
        (["lm_head"], r"lm_head shares its weight with another layer"),
        (["input_layernorm"], r"lora\.target_modules"),
    ],
)
def test_layers_whose_adapters_could_not_be_merged_are_refused(tiny_llama: Path, targets: list[str], said: str) -> None:
    """At the start, with the layer's name and what to set."""
    with pytest.raises(BadInput, match=said):
        lora_learner(tiny_llama, target_modules=targets)


def test_a_checkpoint_of_another_rank_or_of_all_weights_is_refused(tiny_llama: Path) -> None:
    """Before anything is changed."""
    learner = lora_learner(tiny_llama)
    before = snapshot(learner.weights(), {}).weights
    other = lora_learner(tiny_llama, rank=RANK + 1)
    full = model_loading.load_learner(tiny_llama, parse_run_config(run_document(tiny_llama)), torch.device("cpu"))

    for theirs, said in (
        (other, r"down_proj\.lora_A\.weight is \[4, 32\] there and \[3, 32\] here"),
        (full, "are on one side only"),
    ):
        with pytest.raises(BadInput, match=said):
            learner.restore(theirs.weights(), theirs.optimizer_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.weights().items())


def test_adapters_that_are_no_numbers_are_not_published(tiny_llama: Path, tmp_path: Path) -> None:
    """Nor is a base: the tensor is named."""
    learner = lora_learner(tiny_llama)
    published = Published(tmp_path, learner, torch.float32)
    next(iter(learner.weights().values()))[0, 0] = float("nan")
    with pytest.raises(BadInput, match=r"weights version 0: tensor base_model\..*lora_A\.weight has values that are NaN"):
        published.publish()
    learner.base_weights()["model.norm.weight"][0] = float("nan")
    with pytest.raises(BadInput, match=r"the base .*: tensor model\.norm\.weight has values that are NaN"):
        publish_base(published.store, RUN, learner.base_weights(), torch.float32)


def test_another_base_is_refused_in_the_middle_of_a_run(tiny_llama: Path, tmp_path: Path) -> None:
    """Its adapters would be put onto other weights; the same base again is not written again."""
    store = Store(f"file://{tmp_path}/store")
    learner = lora_learner(tiny_llama)
    first = publish_base(store, RUN, learner.base_weights(), torch.float32)
    written = store.fs.created(store.path(first[0], WEIGHTS_FILE))
    assert publish_base(store, RUN, learner.base_weights(), torch.float32) == first
    assert store.fs.created(store.path(first[0], WEIGHTS_FILE)) == written

    learner.base_weights()["model.norm.weight"][0] = 7.0
    with pytest.raises(BadInput, match="its files have changed since the run began"):
        publish_base(store, RUN, learner.base_weights(), torch.float32)


def test_a_base_that_the_store_does_not_keep_as_it_was_written_is_no_base(tmp_path: Path) -> None:
    """Every version of the run builds on it, and it is written only once."""

    class Lying(Store):
        def read_range(self, path: str, start: int, end: int) -> bytes:
            return super().read_range(path, start, end)[:-1]

    weights = {"w": torch.arange(6.0).reshape(2, 3)}
    with pytest.raises(Unavailable, match="not read as it was written"):
        publish_base(Lying(f"file://{tmp_path}"), RUN, weights, torch.bfloat16)
    path, _ = publish_base(Store(f"file://{tmp_path}"), RUN, weights, torch.bfloat16)
    assert Store(f"file://{tmp_path}").exists(f"{path}/{MANIFEST}")
