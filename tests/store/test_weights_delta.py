"""A delta makes the new weights of the old ones, bit for bit, and refuses all else."""

from __future__ import annotations

import json
import struct

import pytest

np = pytest.importorskip("numpy")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from seamlessflow.errors import BadInput  # noqa: E402
from seamlessflow.weights import delta  # noqa: E402
from seamlessflow.weights.delta import CHUNK_VALUES  # noqa: E402
from seamlessflow.weights.delta_codec import (  # noqa: E402  # noqa: E402
    ALL,
    BITMAP,
    RAW,
    RICE,
    decode_positions,
    decode_values,
    encode_positions,
    encode_values,
)
from seamlessflow.weights.safetensors_file import LOOK_VALUES, WORD_BYTES, Bits, check_numbers, parse_tensors  # noqa: E402
from tests.store.weights_builders import copy, pairs, safetensors, same, stepped, tensor  # noqa: E402

NAN, OTHER_NAN, MINUS_ZERO, ZERO, INFINITY = 0x7FC0, 0x7FC1, 0x8000, 0, 0x7F80


def weights(size: int = 5000, dtype: str = "BF16") -> dict[str, Bits]:
    """Values as a model has them, between 0.25 and 0.5 in size and of both signs."""
    stream = np.random.default_rng(1)
    return {"w": tensor(dtype, 0x3E80 + stream.integers(0, 128, size) + 0x8000 * stream.integers(0, 2, size))}


def changed_by(old: dict[str, Bits], new: dict[str, Bits]) -> dict[str, Bits]:
    """What the delta of both makes of the old ones."""
    target = copy(old)
    delta.apply(delta.parse(delta.encode(old, new)), target)
    return target


@given(pairs())
@settings(deadline=None, max_examples=150)
def test_old_and_delta_give_new(pair):
    """Any dtype, any bit patterns, any share of changes, no tensor at all."""
    old, new = pair

    assert same(changed_by(old, new), new)


@given(st.integers(1, 600), st.data())
@settings(deadline=None)
def test_positions_come_back_from_every_form(num_values, data):
    """Whatever changed, and whichever form was the smallest."""
    changed = np.array(data.draw(st.lists(st.booleans(), min_size=num_values, max_size=num_values)))
    positions = np.flatnonzero(changed)
    coding, content = encode_positions(changed, positions)
    back = decode_positions(coding, content, num_values=num_values, num_changed=len(positions))

    assert back.tolist() == positions.tolist()


def test_changes_are_compared_as_bits():
    """NaN is not unequal to itself, one NaN is another than the next, and -0.0 is not 0.0."""
    old = {"w": tensor("BF16", [NAN, NAN, MINUS_ZERO, ZERO, INFINITY, 1])}
    new = {"w": tensor("BF16", [NAN, OTHER_NAN, ZERO, MINUS_ZERO, INFINITY, 1])}

    assert delta.parse(delta.encode(old, new)).num_changed == 3
    assert same(changed_by(old, new), new)


def test_tensors_that_are_equal_cost_a_header():
    """Nothing is said of them but their names."""
    old = weights(2 * CHUNK_VALUES)
    made = delta.encode(old, copy(old))

    assert delta.parse(made).num_changed == 0 and len(made) < 1000
    assert same(changed_by(old, copy(old)), old)


def test_a_tensor_of_several_chunks_changes_at_its_seams():
    """The first and last values of chunks, the last chunk shorter than the others."""
    old = weights(2 * CHUNK_VALUES + 5)
    new = copy(old)
    new["w"].words[[0, CHUNK_VALUES - 1, CHUNK_VALUES, 2 * CHUNK_VALUES + 4]] ^= 1

    assert delta.parse(delta.encode(old, new)).num_changed == 4
    assert same(changed_by(old, new), new)


@pytest.mark.parametrize(
    ("share", "form"), [(1.0, "all"), (0.5, "bitmap"), (0.1, "gaps"), (0.01, "gaps"), (0.0001, "gaps")], ids=str
)
def test_the_form_of_positions_follows_the_share_of_changes(share, form):
    """And costs no more than a tenth above the entropy of independent changes."""
    changed = np.random.default_rng(0).random(200_000) < share
    coding, content = encode_positions(changed, np.flatnonzero(changed))
    p = min(max(changed.mean(), 1e-9), 1 - 1e-9)
    entropy_bits = -len(changed) * (p * np.log2(p) + (1 - p) * np.log2(1 - p))

    assert {ALL: "all", BITMAP: "bitmap"}.get(coding, "gaps") == form
    assert 8 * len(content) <= 1.1 * entropy_bits + 64


@pytest.mark.parametrize(("farthest", "bits"), [(1, 2.1), (8, 7.0), (60, 11.0)])
def test_values_that_move_to_neighbours_cost_two_bits(farthest, bits):
    """More when they move farther; never more than the value itself."""
    old = weights(100_000)["w"].words
    new = stepped({"w": tensor("BF16", old)}, share=1.0, farthest=farthest, seed=2)["w"].words
    coding, content = encode_values(old, new)

    assert coding != RAW
    assert 8 * len(content) / len(old) <= bits
    assert decode_values(coding, content, old).tolist() == new.tolist()


def test_values_with_nothing_in_common_are_written_as_they_are():
    """So a delta is at no time much larger than the weights."""
    stream = np.random.default_rng(3)
    old = {"w": tensor("F32", stream.integers(1 << 31, 1 << 32, 50_000))}
    new = {"w": tensor("F32", stream.integers(0, 1 << 31, 50_000))}

    assert len(delta.encode(old, new)) < 1.01 * new["w"].words.nbytes + 1000
    assert same(changed_by(old, new), new)


def test_a_small_step_in_bfloat16_takes_a_third_of_the_published_scheme():
    """That one writes a 16-bit gap and the value: 4 bytes for each that changed."""
    old = weights(500_000)
    made = delta.encode(old, stepped(old, share=0.02, farthest=1, seed=4))

    assert len(made) / delta.parse(made).num_changed < 4 / 3


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        ({}, "tensors w of its base are missing"),
        ({"w": tensor("BF16", [1, 2]), "v": tensor("BF16", [1])}, "tensors v are not in its base"),
        ({"w": tensor("F16", [1, 2])}, r"tensor w is F16 \[2\], in its base BF16 \[2\]"),
        ({"w": tensor("BF16", [1, 2, 3])}, r"tensor w is BF16 \[3\], in its base BF16 \[2\]"),
        ({"w": tensor("BF16", [1, 2], (2, 1))}, r"tensor w is BF16 \[2, 1\], in its base BF16 \[2\]"),
    ],
)
def test_other_names_dtypes_and_shapes_are_refused_on_both_sides(other, complaint):
    """Before anything is written or changed, and saying which tensor it is."""
    old = {"w": tensor("BF16", [1, 2])}
    with pytest.raises(BadInput, match=complaint):
        delta.encode(old, other)

    target = copy(old)
    with pytest.raises(BadInput, match=complaint):
        delta.apply(delta.parse(delta.encode(other, other)), target)
    assert same(target, old)


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_damaged_bytes_are_refused_or_still_a_delta(data):
    """Digests find damage first; what gets past them raises BadInput and nothing else."""
    old = weights(2000)
    made = bytearray(delta.encode(old, stepped(old, share=0.1, farthest=5, seed=5)))
    if data.draw(st.booleans()):
        made[data.draw(st.integers(0, len(made) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del made[data.draw(st.integers(0, len(made) - 1)) :]
    try:
        delta.apply(delta.parse(bytes(made)), copy(old))
    except BadInput as wrong:
        assert "delta" in str(wrong) or "base" in str(wrong)


def test_an_unknown_format_is_refused_by_name():
    """A later release may write others."""
    made = delta.encode(weights(8), weights(8)).replace(b"delta-1", b"delta-7")

    with pytest.raises(BadInput, match="seamlessflow-delta-7, known here is seamlessflow-delta-1"):
        delta.parse(made)


def test_a_file_that_is_not_safetensors_is_refused():
    """Cut anywhere, or of something else."""
    made, deep = safetensors(weights(8)), struct.pack("<Q", 100_000) + b"[" * 100_000
    for content in (b"", b"half", made[:-1], made[:20], struct.pack("<Q", 2**63) + b"{}", b"\x02" + bytes(7) + b"[]", deep):
        with pytest.raises(BadInput, match=r"model\.safetensors is not safetensors"):
            parse_tensors(np.frombuffer(content, np.uint8), "model.safetensors")


@pytest.mark.parametrize("shape", [[-2, -4], [8.0], ["8"], [True, 8.0]])
def test_a_shape_that_is_none_is_refused(shape):
    """Although its product is right."""
    text = json.dumps({"a": {"dtype": "U8", "shape": shape, "data_offsets": [0, 8]}}).encode()

    with pytest.raises(BadInput, match=r"model\.safetensors is not safetensors"):
        parse_tensors(np.frombuffer(struct.pack("<Q", len(text)) + text + bytes(8), np.uint8), "model.safetensors")


def test_files_of_others_are_read():
    """Written by the library, read here, to the same bits."""
    torch = pytest.importorskip("torch")
    save = pytest.importorskip("safetensors.torch").save
    written = {"a": torch.randn(3, 5).to(torch.bfloat16), "b": torch.arange(4), "c": torch.tensor(1.5)}
    read, _ = parse_tensors(np.frombuffer(save(written), np.uint8), "x")

    assert {name: (each.dtype, each.shape) for name, each in read.items()} == {
        "a": ("BF16", (3, 5)), "b": ("I64", (4,)), "c": ("F32", ()),
    }  # fmt: skip
    for name, each in written.items():
        assert read[name].words.tobytes() == each.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("dtype", "pattern"),
    [("BF16", NAN), ("BF16", 0x7F81), ("BF16", 0xFF81), ("F16", 0x7C01), ("F32", 0xFF800001), ("F64", (0x7FF << 52) + 1)],
)
def test_values_that_are_no_numbers_are_found(dtype, pattern):
    """Wherever they are; zeros, subnormal and large values are none of them, nor infinities, of which the writer judges."""
    largest = {"BF16": 0x7F7F, "F16": 0x7BFF, "F32": 0x7F7FFFFF, "F64": (0x7FF << 52) - 1}[dtype]
    signed = [each | 1 << 8 * WORD_BYTES[dtype] - 1 for each in (0, largest, largest + 1)]
    good = tensor(dtype, [0, 1, largest, largest + 1, *signed] * LOOK_VALUES)
    check_numbers({"good": good, "ids": tensor("I64", [0x7FF << 52 | 1])}, "weights version 3")

    good.words[-2] = pattern
    with pytest.raises(BadInput, match="weights version 3: tensor good has values that are NaN;"):
        check_numbers({"good": good}, "weights version 3")


def test_the_number_of_threads_does_not_matter():
    """The same bytes, the same weights."""
    old = weights(2 * CHUNK_VALUES + 9)
    new = stepped(old, share=0.03, farthest=3, seed=6)

    assert delta.encode(old, new, num_threads=1) == delta.encode(old, new, num_threads=3)


def test_gaps_of_which_the_announced_number_is_wrong_are_refused():
    """Nothing is read beyond what is there."""
    changed = np.zeros(4000, np.bool_)
    changed[::50] = True
    coding, content = encode_positions(changed, np.flatnonzero(changed))

    assert coding >= RICE
    for num_values, num_changed in ((4000, 79), (4000, 81), (4000, 5000), (3900, 80)):
        with pytest.raises(BadInput, match="damaged"):
            decode_positions(coding, content, num_values=num_values, num_changed=num_changed)
