"""Run files with ``weights.pinned``: what it needs, its tags, and that nothing changes where it is left out."""

import pytest

from seamlessflow.config.run import parse_run_config
from seamlessflow.errors import ConfigError
from tests.domain.test_run_config import GOOD

AGENT = GOOD["agents"][0]


def config(**changes):
    return parse_run_config({**GOOD, "weights": {"pinned": "episode"}, **changes})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fleet": {"long_tail": 1.5}}, r"weights.pinned and fleet.long_tail"),
        ({"model": {"name": "m", "engine": "continuous_batching"}}, r"two engines in a worker.*transformers or scripted"),
        ({"agents": [AGENT, {**AGENT, "env": "b", "tag": "h800"}]}, r"same tag, got h800\+rollout, rollout"),
        ({"agents": [{**AGENT, "tag": "a+b+c"}]}, r"up to 3 components, got a\+b\+c\+rollout"),
        ({"agents": [{**AGENT, "tag": "v3"}]}, r"slots of versions: choose another name in rollout\+v3"),
        ({"agents": [{**AGENT, "needs": "v0"}]}, r"choose another name in v0"),
        ({"weights": {"pinned": "call"}}, r"weights.pinned: .*'episode'"),
    ],
)
def test_what_cannot_be_is_refused_with_a_word_that_says_why(change, said):
    with pytest.raises(ConfigError, match=said):
        config(**change)


@pytest.mark.parametrize(("staleness", "slots"), [(0, 2), (2, 4), (6, 8), (30, 8)])
def test_its_tags_are_slots_enough_for_every_version_that_may_still_be_trained(staleness, slots):
    """As many as there can be consumers for."""
    run = config(algorithm={"steps": 1, "max_staleness": staleness})

    assert run.version_slots == slots
    assert run.work_tags == tuple(f"rollout+v{slot}" for slot in range(slots))


def test_left_out_its_document_is_what_it_was():
    """Older services refuse a key that they do not know."""
    plain = parse_run_config({**GOOD, "weights": {}})

    assert plain.version_slots == 0 and plain.work_tags == ("rollout",)
    assert "pinned" not in plain.document["weights"]
    assert config().document["weights"]["pinned"] == "episode"
