"""Fields of runs whose episodes keep their weights version: where none does, not a byte is written of them."""

from __future__ import annotations

import msgpack
import pytest

from seamlessflow.codec import decode, encode, pack_record, unpack_record
from seamlessflow.contracts import CallRequested, GenerationRequested, Lease, NodeStatus, Role
from seamlessflow.contracts.tags import needed_tag, slot_of, slot_tag
from tests.contracts.examples import EXAMPLES

KEPT = [each for each in EXAMPLES if isinstance(each, CallRequested | GenerationRequested)]
LEASE = Lease(run="r1", role=Role.ROLLOUT, epoch=3)
STATUS = NodeStatus(node="n1", service="rollout-worker", instance="i", capabilities=("rollout",), pid=1)


@pytest.mark.parametrize("event", KEPT, ids=lambda event: type(event).__name__)
def test_an_event_that_keeps_no_version_has_the_bytes_it_always_had(event):
    """So consumers, stores and older readers notice nothing."""
    plain = event.model_copy(update={"weights_version": None})

    assert "weights_version" not in msgpack.unpackb(encode(plain))
    assert decode("sf.r1.any", encode(plain)) == plain
    assert msgpack.unpackb(encode(event))["weights_version"] == 3
    assert decode("sf.r1.any", encode(event)) == event


def test_the_first_version_is_a_version():
    """It is number 0, which is not nothing."""
    first = KEPT[0].model_copy(update={"weights_version": 0})

    assert decode("sf.r1.any", encode(first)) == first
    assert unpack_record(Lease, pack_record(LEASE.model_copy(update={"keeps": 0}))).keeps == 0


def test_leases_and_presences_without_versions_have_the_bytes_they_always_had():
    """And with them they are read as they were written."""
    assert not {"keeps", "let_go"} & msgpack.unpackb(pack_record(LEASE)).keys()
    assert "versions" not in msgpack.unpackb(pack_record(STATUS))
    lease = LEASE.model_copy(update={"keeps": 4, "let_go": (1, 2)})
    status = STATUS.model_copy(update={"versions": (0, 5)})

    assert unpack_record(Lease, pack_record(lease)) == lease
    assert unpack_record(NodeStatus, pack_record(status)) == status


def test_a_slot_is_part_of_a_tag_and_nothing_that_a_node_has():
    """Only in runs with slots; in any other ``v3`` is a component like others."""
    tag = slot_tag("h800+rollout", 3)

    assert (tag, slot_of(tag), slot_of("h800+rollout")) == ("h800+rollout+v3", 3, None)
    assert needed_tag(tag, has_classes=False, has_slots=True) == "h800+rollout"
    assert needed_tag(tag, has_classes=False) == tag
    assert slot_of("v3x") is None
