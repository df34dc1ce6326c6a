"""Every shard and bucket that a run document may ask for is one that a deployment with permissions can serve."""

from __future__ import annotations

from seamlessflow.config.training_sections import MAX_BUCKETS, MAX_SHARDS
from seamlessflow.contracts import Service
from seamlessflow.contracts.export.permissions import BUCKETS_PER_TAG, SHARDS, permissions
from seamlessflow.contracts.streams import consumer_name, generation_consumer


def test_as_many_shards_and_buckets_may_be_asked_for_as_permissions_name() -> None:
    """Else a run would start and its workers be refused."""
    assert (MAX_SHARDS, MAX_BUCKETS) == (SHARDS, BUCKETS_PER_TAG)


def test_who_serves_the_last_ones_may_pull_from_them() -> None:
    """The numbering of both begins with 0."""
    allowed = permissions()
    last_bucket = generation_consumer(("rollout",), "rollout", MAX_BUCKETS - 1)
    last_shard = consumer_name(Service.TRAJECTORY_MANAGER, str(MAX_SHARDS - 1))

    assert f"$JS.API.CONSUMER.MSG.NEXT.*.{last_bucket}" in allowed[Service.ROLLOUT_WORKER].publish
    assert f"$JS.API.CONSUMER.MSG.NEXT.*.{last_shard}" in allowed[Service.TRAJECTORY_MANAGER].publish
