"""What a scheduler cannot use is refused or a dead letter, with a reason that whoever asked can find."""

from __future__ import annotations

from seamlessflow.bus.base import Message
from seamlessflow.contracts import DeadLetter, RunPhase, RunRequested, RunStopRequested
from seamlessflow.contracts.routes import CONTROL_STREAM
from tests.services.scheduler.scheduler_bench import Bench, until
from tests.services.scheduler.scheduler_world import RUN, document, task


async def test_tasks_nobody_can_do_and_bytes_that_are_no_task_are_dead_letters(bench: Bench):
    """Both are kept with their reason, and the run goes on."""
    await bench.start()
    await bench.announce()
    await bench.request()
    bench.live()
    await bench.journal.publish(task("x", env="unknown"))
    await bench.bus.publish(Message(f"sf.{RUN}.task.single.y", b'{"prompt": 3}', "raw-1"))
    await bench.submit(train=8)

    await bench.until_ended()
    reasons = sorted(letter.reason for letter in await bench.events(RUN, DeadLetter))
    assert len(reasons) == 2
    assert "not a TaskSubmitted" in reasons[0] and "no agent of run r1 has env 'unknown'" in reasons[1]


async def test_a_document_that_cannot_be_used_is_refused_where_the_requester_looks(bench: Bench):
    """RUNS holds refused with the text of the configuration error; CTL keeps the dead letter; no journal is made."""
    await bench.start()
    await bench.journal.publish(RunRequested(run=RUN, document={**document(), "algorithm": {"stepz": 3}}))

    async def refused() -> bool:
        state = await bench.state()
        return state is not None and state.phase is RunPhase.REFUSED

    await until(refused)
    assert "stepz" in (await bench.state()).reason

    async def buried() -> bool:
        return await bench.bus.last(CONTROL_STREAM, "sf.ctl.dead.>") is not None

    await until(buried)
    assert not await bench.has_journal()


async def test_a_run_with_a_policy_that_cannot_be_had_is_refused(bench: Bench):
    """When it is requested, not when its first batch is ready."""
    await bench.start()
    await bench.journal.publish(RunRequested(run=RUN, document=document(fleet={"policy": "nowhere:at_all"})))

    async def refused() -> bool:
        state = await bench.state()
        return state is not None and state.phase is RunPhase.REFUSED

    await until(refused)
    assert "cannot import nowhere" in (await bench.state()).reason


async def test_a_stop_of_a_run_nobody_requested_is_a_dead_letter(bench: Bench):
    """There is nothing to stop, and whoever asked can find out."""
    await bench.start()
    await bench.journal.publish(RunStopRequested(run="unknown"))

    async def buried() -> bool:
        record = await bench.bus.last(CONTROL_STREAM, "sf.ctl.dead.>")
        return record is not None and "never requested" in (await bench.journal.open(record)).reason

    await until(buried)
