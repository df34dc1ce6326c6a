"""Tags: one spelling for each, a consumer for each, and permissions that know them all beforehand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.config.run import parse_run_config
from seamlessflow.config.training_sections import MAX_BUCKETS
from seamlessflow.contracts import Service
from seamlessflow.contracts.export.permissions import permissions
from seamlessflow.contracts.streams import generation_consumer, run_consumers
from seamlessflow.contracts.subjects import matches, overlaps
from seamlessflow.contracts.tags import ALL_PLACES, MAX_WORK_TAGS, canonical, component, missing, places, work_tag
from seamlessflow.errors import ConfigError

components = st.from_regex(r"[a-z0-9-]{1,32}\Z", fullmatch=True)
work_tags = st.lists(st.lists(components, max_size=3).map(lambda parts: work_tag("+".join([*parts, "rollout"]))), min_size=1)


@given(st.permutations(["h800", "rollout", "prefill"]), st.booleans())
def test_a_tag_has_one_spelling(parts, twice):
    """Whatever order its components were given in, and however often."""
    assert canonical("+".join(parts * (1 + twice))) == "h800+prefill+rollout"


def test_rollout_goes_without_saying_for_what_is_sampled():
    """A node that samples nothing serves nothing."""
    assert [work_tag(tag) for tag in ("rollout", "judge", "rollout+h800")] == ["rollout", "judge+rollout", "h800+rollout"]


@pytest.mark.parametrize("name", ["", "H800", "a b", "a.b", "*", ">", "a" * 33, "ä", "a\n"])
def test_what_is_no_tag_is_refused_and_said_what_is(name):
    """It becomes a token of subjects and of the names of consumers."""
    with pytest.raises(ValueError, match="a-z, 0-9 and '-'"):
        component(name)
    with pytest.raises(ValueError, match="a-z, 0-9 and '-'"):
        canonical(f"rollout+{name}")


def test_a_tag_of_too_many_components_is_refused():
    """It is one token of a subject."""
    with pytest.raises(ValueError, match="up to 4 components, got 5"):
        work_tag("a+b+c+d")


def test_a_node_serves_a_tag_when_it_has_all_of_it():
    """What it lacks is said by name."""
    assert missing("h800+rollout", {"rollout", "train"}) == ("h800",)
    assert missing("h800+rollout", {"rollout", "h800", "train"}) == ()


@given(work_tags.filter(lambda tags: len(set(tags)) <= MAX_WORK_TAGS), st.integers(1, 16))
def test_every_tag_and_bucket_has_a_consumer_of_its_own(tags, buckets):
    """No two have one name, and none takes what is another's: a work queue would refuse it. Where there are several one more is
    nobody's."""
    tags = sorted(set(tags))
    made = [c for c in run_consumers("r", envs=("e",), shards=1, tags=tags, buckets=buckets) if "ROLLOUT" in c.stream]

    assert len({consumer.name for consumer in made}) == len(made) == len(tags) * (buckets + (buckets > 1))
    assert set(places(tags).values()) <= set(ALL_PLACES)
    for number, tag in enumerate(tags[:3]):
        (mine,) = [c for c in made if matches(c.filters[0], f"sf.r.gen.{tag}.0.e-0.c1")]
        assert mine.name == generation_consumer(tags, tag, 0)
        assert not any(overlaps(mine.filters[0], c.filters[0]) for c in made if c is not mine), number


@given(work_tags.filter(lambda tags: len(set(tags)) <= MAX_WORK_TAGS), st.integers(0, MAX_BUCKETS))
def test_the_worker_may_pull_from_every_consumer_of_every_run_and_from_nobody_elses(tags, bucket):
    """The list is fixed, whatever tags people think up; the agent-runner, whose names are free, is denied all of them."""
    worker, runner = permissions()[Service.ROLLOUT_WORKER], permissions()[Service.AGENT_RUNNER]
    pull = f"$JS.API.CONSUMER.MSG.NEXT.QROLLOUT_r.{generation_consumer(tags, tags[0], bucket)}"

    assert any(matches(allowed, pull) for allowed in worker.publish)
    assert any(matches(denied, pull) for denied in runner.deny_publish)
    for others in ("QRUNNER_r.env-solver", "QTRAINER_r.trainer", "QMANAGER_r.shard-0", "QSCHEDULER_r.scheduler"):
        assert not any(matches(allowed, f"$JS.API.CONSUMER.MSG.NEXT.{others}") for allowed in worker.publish)


@pytest.mark.parametrize("tag", ["serve", "h800+schedule"])
def test_no_work_is_for_services_that_sample_nothing(tag):
    """It would wait for ever; refused where the run's document is read."""
    with pytest.raises(ValueError, match="services without a device announce"):
        work_tag(tag)
    agent = {"env": "a", "entrypoint": "a:b", "tag": tag}
    with pytest.raises(ConfigError, match="services without a device announce"):
        parse_run_config({"model": {"name": "tiny"}, "agents": [agent]})
