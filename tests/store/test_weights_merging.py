"""Base and adapter to weights: what torch gives in float64, rounded once, and nothing that does not fit."""

from __future__ import annotations

from typing import Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from seamlessflow.errors import BadInput  # noqa: E402
from seamlessflow.weights import adapters as merging  # noqa: E402
from seamlessflow.weights.adapters import (  # noqa: E402
    AdapterFacts,
    adapter_config,
    merge,
    pairs_of,
    scale_of,
    tensor_name,
)
from seamlessflow.weights.safetensors_file import WORD_BYTES, Bits, from_numbers, to_numbers  # noqa: E402  # noqa: E402
from tests.store.weights_builders import Tensors, copy, same, tensor  # noqa: E402

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
NAMED = {**TORCH, "I32": torch.int32}
INFINITY = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000, "F64": 0x7FF << 52}
LARGEST = {"BF16": 0x7F7F, "F16": 0x7BFF, "F32": 0x7F7FFFFF, "F64": (0x7FF << 52) - 1}
A, B = "base_model.model.layer.lora_A.weight", "base_model.model.layer.lora_B.weight"
OUT, IN = 3, 5


def bits_of(values: torch.Tensor) -> Bits:
    name = next(name for name, dtype in NAMED.items() if dtype is values.dtype)
    words = values.contiguous().view(torch.uint8).numpy().view(f"u{WORD_BYTES[name]}").reshape(-1)
    return Bits(name, tuple(values.shape), words.copy())


def values_of(bits: Bits) -> torch.Tensor:
    return torch.from_numpy(bits.words.copy().view(np.uint8)).view(TORCH[bits.dtype]).reshape(bits.shape)


def facts(rank: int, alpha: int = 8, **config: object) -> AdapterFacts:
    described = adapter_config(rank=rank, alpha=alpha, target_modules=["layer"], base_name="m")
    return AdapterFacts("r/base/x", "0" * 64, {**described, **config})


def merged(base: Tensors, adapter: Tensors, of: AdapterFacts) -> Tensors:
    target = copy(base)
    merge(pairs_of(adapter, of, target, "it"), scale_of(of, "it"), target, "it")
    return target


@st.composite
def models(draw: st.DrawFn) -> tuple[Tensors, Tensors, AdapterFacts]:
    """A base with a layer and a norm, an adapter for the layer, and what the manifest says of it."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    dtype = TORCH[draw(st.sampled_from(["BF16", "F16", "F32"]))]
    num_out, num_in, rank = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 5))
    base = {"layer.weight": bits_of(torch.randn(num_out, num_in).to(dtype)), "norm.weight": bits_of(torch.ones(4))}
    size = draw(st.sampled_from([0.0, 1e-6, 1e-3, 1.0, 30.0]))
    adapter = {A: bits_of(torch.randn(rank, num_in)), B: bits_of(size * torch.randn(num_out, rank))}
    return base, adapter, facts(rank, draw(st.integers(1, 64)))


@given(models(), st.integers(1, 40))
@settings(max_examples=200)
def test_the_merged_weights_are_those_of_torch_in_float64_bit_for_bit(model, chunk_values):
    """Whatever the dtype, and however the rows are cut; layers without an adapter stay as they are."""
    base, adapter, of = model
    weight = values_of(base["layer.weight"])
    update = values_of(adapter[B]).double() @ values_of(adapter[A]).double()
    wanted = (weight.double() + of.config["lora_alpha"] / of.config["r"] * update).to(weight.dtype)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(merging, "CHUNK_VALUES", chunk_values)
        found = merged(base, adapter, of)
    assert same({"layer.weight": bits_of(wanted), "norm.weight": base["norm.weight"]}, found)


@given(models())
def test_what_was_merged_before_leaves_no_trace(model):
    """Merging starts from the base: an adapter and then its end give the base's numbers again."""
    base, adapter, of = model
    ended = {A: adapter[A], B: bits_of(torch.zeros(adapter[B].shape))}
    merged(base, adapter, of)

    assert torch.equal(values_of(merged(base, ended, of)["layer.weight"]), values_of(base["layer.weight"]))


@given(
    st.sampled_from(sorted(TORCH)),
    st.lists(st.floats(allow_nan=False, width=64) | st.floats(allow_nan=False, width=16), min_size=1),
)
def test_numbers_are_rounded_as_torch_casts_them(dtype, numbers):
    """To the nearest, ties to even; small ones to subnormal values, large ones to infinity."""
    wanted = torch.tensor(numbers, dtype=torch.float64).to(TORCH[dtype])

    assert from_numbers(np.array(numbers), dtype).tolist() == bits_of(wanted).words.tolist()


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_bit_pattern_is_read_and_written_as_it_is(dtype):
    """All finite values of 16 bits, and the infinities."""
    words = np.arange(1 << 16, dtype=np.uint16)
    words = words[(words & 0x7FFF) <= INFINITY[dtype]]

    assert (from_numbers(to_numbers(words, dtype), dtype) == words).all()


@pytest.mark.parametrize("dtype", sorted(TORCH))
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_value_that_gets_too_large_is_refused_by_name(dtype, sign):
    """It would be infinite, where the writer's was not."""
    base = {"layer.weight": tensor(dtype, [LARGEST[dtype]], (1, 1))}
    if sign < 0:
        base = {"layer.weight": bits_of(-values_of(base["layer.weight"]))}
    step = values_of(base["layer.weight"]).double()
    adapter = {A: bits_of(step.reshape(1, 1)), B: bits_of(torch.tensor([[0.1]]))}

    with pytest.raises(BadInput, match=r"tensor layer\.weight has values that are NaN or infinite"):
        merged(base, adapter, facts(1, 1))


def a_model(**changes: Any) -> tuple[Tensors, Tensors]:
    """A layer [3, 5] in bfloat16 and its adapter of rank 2; ``changes`` replace tensors of the adapter, None removes one."""
    base = {"layer.weight": bits_of(torch.ones(OUT, IN, dtype=torch.bfloat16)), "norm": bits_of(torch.ones(IN))}
    adapter = {A: bits_of(torch.ones(2, IN)), B: bits_of(torch.ones(OUT, 2))}
    adapter |= {name: bits_of(values) for name, values in changes.items() if values is not None}
    return base, {name: each for name, each in adapter.items() if changes.get(name, each) is not None}


@pytest.mark.parametrize(
    ("changes", "rank", "said"),
    [
        ({A: None}, 2, rf"no tensor {A}"),
        ({B: None}, 2, rf"no tensor {B}"),
        ({A: None, B: None}, 2, r"no tensors"),
        ({}, 3, r"of rank 3 the matrices of layer must be \(\(3, 5\), \(3, 3\)\), its adapter has \(\(2, 5\), \(3, 2\)\)"),
        ({A: torch.ones(2, IN + 1)}, 2, r"of rank 2 the matrices of layer must be"),
        ({B: torch.ones(OUT + 1, 2)}, 2, r"of rank 2 the matrices of layer must be"),
        ({A: torch.ones(2, IN, dtype=torch.int32)}, 2, r"of rank 2 .* of BF16, F32, I32"),
        ({"base_model.model.other.lora_A.weight": torch.ones(2, IN)}, 2, r"no tensor base_model\.model\.other\.lora_B\.weight"),
        ({A.replace("layer", "x"): torch.ones(2, IN), B.replace("layer", "x"): torch.ones(OUT, 2)}, 2, r"is for x, which"),
        ({"layer.weight": torch.ones(OUT, IN)}, 2, r"tensor layer\.weight is none of an adapter's"),
    ],
)  # fmt: skip
def test_an_adapter_that_does_not_fit_is_refused_by_name(changes, rank, said):
    """Before anything is changed."""
    base, adapter = a_model(**changes)

    with pytest.raises(BadInput, match=said):
        pairs_of(adapter, facts(rank), base, "weights version 7")


@pytest.mark.parametrize(
    "config",
    [
        {"use_dora": True},
        {"use_rslora": True},
        {"bias": "all"},
        {"rank_pattern": {"layer": 4}},
        {"fan_in_fan_out": True},
        {"alora_invocation_tokens": [1, 2]},
    ],
)
def test_an_adapter_that_means_something_else_is_refused(config):
    """The setting is named: merging it as if it were not there would serve another policy."""
    with pytest.raises(BadInput, match=rf"sets {next(iter(config))}, which cannot be merged"):
        scale_of(facts(2, **config), "weights version 7")


@pytest.mark.parametrize("config", [{"peft_type": "IA3"}, {"r": 0}, {"r": None}, {"lora_alpha": "8"}])
def test_an_adapter_of_another_kind_is_refused(config):
    """No rank, no scale."""
    with pytest.raises(BadInput, match="expected an adapter of type LORA"):
        scale_of(facts(2, **config), "weights version 7")


def test_names_are_those_of_peft():
    """As in its files, without the name that the adapter has in a model."""
    assert tensor_name("model.layers.0.self_attn.q_proj.lora_A.default.weight") == (
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    )
