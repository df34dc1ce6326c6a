"""Telling whether a server uses what it loads, by weights whose tokens changed places."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.remote.engine import RemoteEngine
from seamlessflow_rollout_worker.engines.remote.options import RemoteOptions
from seamlessflow_rollout_worker.engines.remote.probe import Try, are_alike, neighbour, swapped_copy
from tests.services.engines.conftest import CONTEXT, FIRST_VERSION, PROMPT, SLOTS, VOCAB_SIZE, sample
from tests.services.engines.served import Served

torch = pytest.importorskip("torch")


@given(st.integers(1, 10**6), st.data())
def test_neighbours_are_each_others(vocab_size: int, data: st.DataObject) -> None:
    """And none is outside of the vocabulary."""
    token = data.draw(st.integers(0, vocab_size - 1))

    assert 0 <= neighbour(token, vocab_size) < vocab_size
    assert neighbour(neighbour(token, vocab_size), vocab_size) == token


@pytest.mark.parametrize("models", ["tiny_llamas", "tied_llamas"])
def test_a_swapped_model_is_the_same_model_in_neighbours(models: str, request: pytest.FixtureRequest) -> None:
    """Every logit, whether it has one matrix for input and output or two."""
    from transformers import AutoModelForCausalLM

    folder: Path = request.getfixturevalue(models)[0]
    swapped = swapped_copy(folder, VOCAB_SIZE)
    assert swapped is not None
    (swapped / "config.json").write_bytes((folder / "config.json").read_bytes())
    places = [neighbour(token, VOCAB_SIZE) for token in range(VOCAB_SIZE)]
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([PROMPT])).logits
        other = AutoModelForCausalLM.from_pretrained(swapped)(torch.tensor([[places[each] for each in PROMPT]])).logits

    assert torch.equal(plain, other[:, :, places])
    assert not torch.allclose(plain, other)


def test_weights_without_a_matrix_that_is_known_by_name_are_left_alone(tmp_path: Path) -> None:
    """Nothing is written; the check is not made, and that is said."""
    import numpy as np

    save_file({"logits": np.zeros((VOCAB_SIZE, VOCAB_SIZE))}, tmp_path / "model.safetensors")

    assert swapped_copy(tmp_path, VOCAB_SIZE) is None
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        ([(5, -1.0), (8, -2.0), (1, -3.0)], True),
        ([(5, -1.0), (8, -2.0), (7, -9.0)], True),
        ([(4, -1.0), (9, -2.0), (1, -3.0)], False),
    ],
)
def test_answers_are_alike_where_most_are_neighbours(other: list[tuple[int, float]], alike: bool) -> None:
    """One may differ, where two tokens were nearly equal."""
    plain = [Try((4,), (-1.0,)), Try((9,), (-2.0,)), Try((0,), (-3.0,))]

    assert are_alike(plain, [Try((token,), (logprob,)) for token, logprob in other], 10) is alike


class Forgetful(Served):
    """A server that says it loaded weights and keeps a part of the old ones: those whose names begin so."""

    keeps = "nothing"

    async def _load(self, folder: str) -> str | None:
        old, new = load_file(self._folder / "model.safetensors"), load_file(Path(folder) / "model.safetensors")
        mixed = Path(folder) / "mixed.bin"
        save_file({name: old[name] if name.startswith(self.keeps) else new[name] for name in new}, mixed)
        await self._engine.load_weights(mixed, weights_version=0)
        return None


@pytest.mark.parametrize(("keeps", "refused"), [("nothing", False), ("lm_head", True), ("", True)])
async def test_a_server_that_does_not_use_all_it_loads_is_refused(
    tiny_llamas: list[Path], tmp_path: Path, keeps: str, refused: bool
) -> None:
    """Its old output layer, as vLLM on a CPU does for some models, or everything; one that uses all is served."""
    from seamlessflow_rollout_worker.engines.transformers.engine import TransformersEngine

    inner = TransformersEngine(dtype="float32", num_slots=SLOTS, max_context_tokens=CONTEXT, num_threads=1, seed=0)
    served = Forgetful("vllm", vocab_size=VOCAB_SIZE, max_context_tokens=CONTEXT, engine=inner, folder=tiny_llamas[0])
    served.keeps = keeps
    await served.start()
    version = tmp_path / "00000007"
    version.mkdir()
    for name in ("config.json", "model.safetensors"):
        (version / name).write_bytes((tiny_llamas[1] / name).read_bytes())
    engine = RemoteEngine([served.url], RemoteOptions(), temperature=1.0, top_p=1.0, max_context_tokens=CONTEXT)
    try:
        if refused:
            with pytest.raises(BadInput, match="samples as if it had not"):
                await engine.start(version, weights_version=FIRST_VERSION)
        else:
            await engine.start(version, weights_version=FIRST_VERSION)
            assert len((await sample(engine)).ids) == 12
            assert served.label.endswith(f"-{FIRST_VERSION}")
    finally:
        await engine.stop()
        await served.die()
