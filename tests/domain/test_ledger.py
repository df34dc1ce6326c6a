"""The ledger: where tokens go, case by case; then that it balances over random histories, and notices when one lies.

case                                    column of its tokens
attempt followed by another             dropped: superseded
group trained and committed             trained, masked: <reason>, dropped: undelivered (in no sample)
group trained, not committed            in flight
group dropped                           dropped: <reason>; failed and run_ended members under their own name
evaluation attempt judged               evaluated
group of a commit's account             trained, masked: <reason>, whether or not GroupTrained follows
group whose commit is rolled back       dropped: rolled_back; superseded, failed and undelivered ones under their own name
group closed twice                      as its first closing, in journal order, says
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow.contracts import (
    DropReason,
    EpisodeEnded,
    EpisodeEvaluated,
    EpisodeOpened,
    EpisodeOrigin,
    EpisodeStatus,
    EpisodeTokens,
    Event,
    Float32s,
    GroupDropped,
    GroupTrained,
    Int32s,
    RolledBack,
    RunEnded,
    Sample,
    SamplesReady,
    Sampling,
    SegmentSampled,
    StepsCommitted,
    TrainedGroup,
    TrainerClaimed,
)
from seamlessflow.reports.ledger import Ledger

RUN = "r1"
COMPLETED, FAILED = EpisodeStatus.COMPLETED, EpisodeStatus.AGENT_FAILED


def attempt(
    group: str,
    index: int = 0,
    number: int = 0,
    *,
    sampled: int,
    seen: int | None = None,
    status: EpisodeStatus | None = COMPLETED,
    evaluation: str | None = None,
    judged: bool = True,
) -> list[Event]:
    """One attempt that sampled so many tokens, of which the agent saw ``seen`` (None: all). status None: it still runs."""
    origin = EpisodeOrigin(group=group, task=group, env="e", index=index, attempt=number, evaluation=evaluation)
    name = f"{group}-{index}-{number}"
    common = {"run": RUN, "episode": name, "origin": origin}
    history: list[Event] = [EpisodeOpened(**common, shard=0, bucket=0, env="e", prompt="", sampling=Sampling(), seed=1)]
    for start, count in ((0, sampled // 2), (sampled // 2, sampled - sampled // 2)):
        if count:
            history.append(segment(name, start, count))
    if status is None:
        return history
    reward = 1.0 if status is COMPLETED else None
    history.append(EpisodeEnded(**common, shard=0, status=status, reward=reward))
    if evaluation is not None:
        return [*history, *([EpisodeEvaluated(**common, status=status, reward=reward, num_sampled=sampled)] if judged else [])]
    kept = (sampled if seen is None else seen) if status is COMPLETED else 0
    said = {"num_sampled": sampled, "num_undelivered": sampled - kept if status is COMPLETED else 0}
    samples = (sample(kept),) if kept else ()
    return [*history, SamplesReady(**common, status=status, reward=reward, samples=samples, **said)]


def claimed(history: list[Event], in_samples: int, **said: int) -> list[Event]:
    """The same attempt, of which the manager claims something else."""
    return [*history[:-1], history[-1].model_copy(update={"samples": (sample(in_samples),), **said})]


def segment(episode: str, start: int, count: int) -> SegmentSampled:
    return SegmentSampled(
        run=RUN, episode=episode, generation=f"c{episode}", shard=0, nonce="n", start=start,
        token_ids=Int32s(range(count)), logprobs=Float32s([0.0] * count), weights_version=0,
    )  # fmt: skip


def sample(count: int) -> Sample:
    return Sample(
        token_ids=Int32s(range(count + 1)), spans=((1, count + 1),), logprobs=Float32s([0.0] * count), versions=((0, count),)
    )


def trained(group: str, **tokens: tuple[int, dict[str, int]]) -> GroupTrained:
    """``g-0-0`` is written g_0_0."""
    episodes = [EpisodeTokens(episode=n.replace("_", "-"), trained=t, masked=m) for n, (t, m) in tokens.items()]
    return GroupTrained(run=RUN, group=group, step=1, episodes=tuple(episodes))


def committed(*groups: str) -> StepsCommitted:
    return StepsCommitted(run=RUN, step=1, line=1, checkpoint="c", groups=groups)


def claim(line: int) -> TrainerClaimed:
    return TrainerClaimed(run=RUN, line=line, nonce=f"n{line}", by="trainer")


def account(step: int, line: int, *groups: GroupTrained) -> StepsCommitted:
    """A commit under the claim of a line, and its account; its checkpoint is named after step and line."""
    parts = tuple(TrainedGroup(group=each.group, step=step, episodes=each.episodes) for each in groups)
    names, checkpoint = tuple(each.group for each in groups), f"{step}-{line}"
    return StepsCommitted(run=RUN, step=step, line=line, checkpoint=checkpoint, groups=names, nonce=f"n{line}", account=parts)


def rolled_back(step: int, line: int, checkpoint: str) -> RolledBack:
    return RolledBack(run=RUN, step=step, line=line, nonce=f"n{line}", checkpoint=checkpoint, request=f"q{line}")


def dropped(group: str, line: int | None = None, reason: DropReason = DropReason.STALE) -> GroupDropped:
    return GroupDropped(run=RUN, group=group, reason=reason, nonce="" if line is None else f"n{line}")


def in_use(ledger: Ledger) -> dict[str, tuple[int, int]]:
    """Columns that are not empty: (episodes, tokens)."""
    return {name: (episodes, tokens) for name, episodes, tokens in ledger.rows() if episodes or tokens}


def test_a_committed_group_is_trained_masked_and_undelivered():
    """10 sampled, 8 in samples, 3 of those too old."""
    history = [*attempt("g", sampled=10, seen=8), trained("g", g_0_0=(5, {"stale": 3})), committed("g")]
    ledger = Ledger.of(history)

    assert ledger.balanced and not ledger.gaps
    assert in_use(ledger) == {
        "issued": (1, 10), "trained": (1, 5), "masked: stale": (0, 3), "dropped: undelivered": (0, 2),
    }  # fmt: skip


def test_trained_counts_only_when_a_checkpoint_covers_it():
    """A step that may still be lost has trained nothing."""
    history = [*attempt("g", sampled=4), trained("g", g_0_0=(4, {}))]

    assert in_use(Ledger.of(history)) == {"issued": (1, 4), "in flight": (1, 4)}
    assert in_use(Ledger.of([*history, committed("g")])) == {"issued": (1, 4), "trained": (1, 4)}


def test_an_attempt_that_was_followed_by_another_is_superseded():
    """Whatever becomes of its group."""
    history = [
        *attempt("g", sampled=3, status=FAILED),
        *attempt("g", 0, 1, sampled=4),
        trained("g", g_0_1=(4, {})),
        committed("g"),
    ]

    assert in_use(Ledger.of(history)) == {"issued": (2, 7), "trained": (1, 4), "dropped: superseded": (1, 3)}


def test_members_of_a_dropped_group_that_failed_are_counted_as_failed():
    """The others under the group's reason; tokens of one that was cut off under run_ended."""
    history = [
        *attempt("g", 0, sampled=2),
        *attempt("g", 1, sampled=3, status=FAILED),
        *attempt("g", 2, sampled=4, status=EpisodeStatus.RUN_ENDED),
        GroupDropped(run=RUN, group="g", reason=DropReason.ZERO_VARIANCE),
    ]

    assert in_use(Ledger.of(history)) == {
        "issued": (3, 9), "dropped: failed": (1, 3), "dropped: run_ended": (1, 4), "dropped: zero_variance": (1, 2),
    }  # fmt: skip


def test_evaluation_is_a_column_of_its_own_and_what_the_end_cut_off_is_not_evaluated():
    """An attempt that nobody judged before the run ended is dropped as run_ended."""
    history = [*attempt("a", sampled=2, evaluation="before"), *attempt("b", sampled=3, evaluation="after", judged=False)]

    assert in_use(Ledger.of(history)) == {"issued": (2, 5), "evaluated": (1, 2), "in flight": (1, 3)}
    after = [*history, RunEnded(run=RUN, reason="stopped", steps=0)]
    assert in_use(Ledger.of(after)) == {"issued": (2, 5), "evaluated": (1, 2), "dropped: run_ended": (1, 3)}


def test_tokens_sampled_after_the_end_of_the_attempt_are_issued_and_undelivered():
    """A worker learns of the end a moment late; what it sampled meanwhile was accepted and belongs somewhere."""
    history = [*attempt("g", sampled=4), segment("g-0-0", 4, 2), trained("g", g_0_0=(4, {})), committed("g")]

    assert in_use(Ledger.of(history)) == {"issued": (1, 6), "trained": (1, 4), "dropped: undelivered": (0, 2)}


@pytest.mark.parametrize("wrong", [(3, {}), (5, {}), (4, {"stale": 1})])
def test_a_trainer_that_accounts_for_more_or_fewer_tokens_is_noticed(wrong):
    """4 tokens are in samples: anything else does not balance, or names the episode."""
    ledger = Ledger.of([*attempt("g", sampled=4), trained("g", g_0_0=wrong), committed("g")])

    assert not ledger.balanced and ledger.gaps == ("g-0-0",)


@pytest.mark.parametrize(
    ("claims", "gaps"),
    [
        ([(6, {}), (2, {})], ("g-0-0", "g-1-0")),  # 2 too many here, 2 too few there
        ([(8, {}), (0, {})], ("g-0-0", "g-1-0")),  # each token twice beside an episode that lost its 4
        ([(8, {"num_sampled": 8}), (4, {})], ("g-0-0",)),  # more than was ever stored
        ([(1, {}), (4, {})], ("g-0-0",)),  # 3 of 4 dropped,
        ([(1, {"num_sampled": 1}), (4, {})], ("g-0-0",)),  # or never counted,
        ([(1, {"num_undelivered": 2}), (4, {})], ("g-0-0",)),  # or in part called undelivered
    ],
)
@pytest.mark.parametrize("closing", ["trained", "dropped", "open"])
def test_a_manager_whose_samples_are_not_what_was_sampled_is_noticed(claims, gaps, closing):
    """Two episodes of 4 tokens; the trainer believes the samples. Sums over all episodes may well be right."""
    history: list[Event] = []
    for index, (in_samples, said) in enumerate(claims):
        history += claimed(attempt("g", index, sampled=4), in_samples, **said)
    if closing == "trained":
        history += [trained("g", **{f"g_{i}_0": (count, {}) for i, (count, _) in enumerate(claims)}), committed("g")]
    elif closing == "dropped":
        history.append(GroupDropped(run=RUN, group="g", reason=DropReason.ZERO_VARIANCE))
    ledger = Ledger.of(history)

    assert ledger.gaps == gaps and not ledger.balanced and ledger.to_json()["balanced"] is False


def test_a_trainer_that_accounts_for_an_episode_without_samples_is_noticed():
    """Whatever it says was trained then has no source."""
    history = attempt("g", sampled=4)
    ledger = Ledger.of([*history[:-1], trained("g", g_0_0=(3, {})), committed("g")])

    assert ledger.gaps == ("g-0-0",) and not ledger.balanced


def test_tokens_of_attempts_that_did_not_complete_are_in_no_sample_and_that_is_no_gap():
    """Nor need they all be called undelivered: the agent may have seen some before it failed."""
    for status in (FAILED, EpisodeStatus.RUN_ENDED):
        history = [*attempt("g", sampled=4, status=status), GroupDropped(run=RUN, group="g", reason=DropReason.FAILED)]
        assert Ledger.of(history).balanced and not Ledger.of(history).gaps


@pytest.mark.parametrize("counted", [3, 5])
def test_an_evaluation_whose_tokens_are_miscounted_is_noticed(counted):
    """4 were stored before its end."""
    history = attempt("a", sampled=4, evaluation="before")
    ledger = Ledger.of([*history[:-1], history[-1].model_copy(update={"num_sampled": counted})])

    assert ledger.gaps == ("a-0-0",) and not ledger.balanced


def test_a_commit_with_its_account_closes_and_commits_in_one():
    """Killed before GroupTrained, or with it said again: the tokens are where the account has them."""
    history = [claim(1), *attempt("g", sampled=10, seen=8), account(1, 1, trained("g", g_0_0=(5, {"stale": 3})))]
    expected = {"issued": (1, 10), "trained": (1, 5), "masked: stale": (0, 3), "dropped: undelivered": (0, 2)}

    for after in ([], [trained("g", g_0_0=(5, {"stale": 3}))], [trained("g", g_0_0=(8, {}))], [dropped("g", 1)]):
        ledger = Ledger.of([*history, *after])
        assert ledger.balanced and in_use(ledger) == expected


@pytest.mark.parametrize(
    ("closings", "column"),
    [
        ([dropped("g", 1), account(1, 1, trained("g", g_0_0=(4, {})))], "dropped: stale"),
        ([account(1, 1, trained("g", g_0_0=(4, {}))), dropped("g", 1)], "trained"),
        (
            [account(1, 1, trained("g", g_0_0=(4, {}))), claim(2), account(1, 2, trained("g", g_0_0=(1, {"stale": 3})))],
            "trained",
        ),
        ([dropped("g", 1), dropped("g", 1, DropReason.ZERO_VARIANCE)], "dropped: stale"),
    ],
    ids=["drop then commit", "commit then drop", "two commits", "two drops"],
)
def test_the_first_closing_of_a_group_wins(closings, column):
    """In journal order, whoever published it under the newest claim of its time."""
    ledger = Ledger.of([claim(1), *attempt("g", sampled=4), *closings])

    assert ledger.balanced and in_use(ledger) == {"issued": (1, 4), column: (1, 4)}


@pytest.mark.parametrize(
    "late",
    [
        trained("g", g_0_0=(4, {})),
        dropped("g"),
        dropped("g", 1),
        committed("g"),
        account(1, 1, trained("g", g_0_0=(4, {}))),
        RunEnded(run=RUN, reason="stopped", steps=0),
    ],
    ids=["GroupTrained", "GroupDropped", "GroupDropped of a claim", "commit", "commit of a claim", "end"],
)
def test_what_an_abandoned_trainer_publishes_changes_nothing(late):
    """An earlier release's, which compares nothing, or that of a claim which is not the newest: the group is still open."""
    history = [claim(1), *attempt("g", sampled=4), *attempt("e", sampled=2, evaluation="after", judged=False), claim(2), late]

    assert in_use(Ledger.of(history)) == {"issued": (2, 6), "in flight": (2, 6)}
    now = Ledger.of([*history, account(1, 2, trained("g", g_0_0=(3, {"stale": 1})))])
    assert now.balanced and in_use(now)["trained"] == (1, 3)


def test_a_journal_without_claims_goes_on_under_the_first_one():
    """Groups that an earlier release closed and did not commit are in the account of its checkpoint, and count once."""
    history = [*attempt("g", sampled=4), *attempt("h", sampled=3), trained("g", g_0_0=(4, {})), claim(1)]
    assert in_use(Ledger.of(history)) == {"issued": (2, 7), "in flight": (2, 7)}

    ledger = Ledger.of([*history, account(1, 1, trained("g", g_0_0=(4, {})), trained("h", h_0_0=(3, {})))])
    assert ledger.balanced and in_use(ledger) == {"issued": (2, 7), "trained": (2, 7)}


def test_groups_behind_a_rollback_are_dropped_as_rolled_back():
    """Those of the checkpoint that it goes back to stay trained. The others stay dropped, whatever is published later."""
    history = [
        claim(1),
        *attempt("a", sampled=4),
        account(1, 1, trained("a", a_0_0=(4, {}))),
        *attempt("b", 0, sampled=5, status=FAILED),
        *attempt("b", 0, 1, sampled=6, seen=5),
        *attempt("b", 1, sampled=7, status=FAILED),
        *attempt("b", 2, sampled=8),
        account(2, 1, trained("b", b_0_1=(5, {}), b_2_0=(1, {"stale": 7}))),
        claim(2),
        rolled_back(1, 2, "1-1"),
    ]
    expected = {
        "issued": (5, 30), "trained": (1, 4), "dropped: failed": (1, 7), "dropped: rolled_back": (2, 13),
        "dropped: superseded": (1, 5), "dropped: undelivered": (0, 1),
    }  # fmt: skip

    for after in ([], [dropped("b", 2)], [account(2, 2, trained("b", b_0_1=(5, {}), b_2_0=(8, {})))]):
        ledger = Ledger.of([*history, *after])
        assert ledger.balanced and in_use(ledger) == expected
        assert ledger.to_json()["tokens"]["dropped"]["rolled_back"] == 13


def test_a_rollback_takes_back_what_no_commit_holds():
    """An earlier release published a group as trained and was killed before its commit; its checkpoint is damaged."""
    history = [*attempt("a", sampled=4), trained("a", a_0_0=(4, {})), committed("a"), *attempt("b", sampled=3)]
    ledger = Ledger.of([*history, trained("b", b_0_0=(3, {})), claim(1), rolled_back(1, 1, "c")])

    assert ledger.balanced and in_use(ledger) == {"issued": (2, 7), "trained": (1, 4), "dropped: rolled_back": (1, 3)}


def test_json_and_rows_say_the_same():
    """summary.json and the table are two forms of one ledger."""
    ledger = Ledger.of([*attempt("g", sampled=4, seen=3), trained("g", g_0_0=(3, {})), committed("g")])
    written = ledger.to_json()

    assert written["balanced"] is True
    assert written["tokens"]["trained"] == {name: tokens for name, _, tokens in ledger.rows()}["trained"] == 3
    assert written["tokens"]["dropped"] == {"undelivered": 1}


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """A few groups, each with members of several attempts, closed in any way or not at all; shuffled as readers may see it."""
    history: list[Event] = []
    for number in range(draw(st.integers(0, 4))):
        group = f"g{number}"
        evaluation = draw(st.sampled_from([None, None, "after"]))
        done: list[EpisodeTokens] = []
        for index in range(draw(st.integers(1, 3))):
            last = draw(st.integers(0, 2))
            for tried in range(last + 1):
                sampled = draw(st.integers(0, 9))
                seen = draw(st.integers(0, sampled))
                end = (
                    draw(st.sampled_from([COMPLETED, COMPLETED, FAILED, EpisodeStatus.RUN_ENDED, None]))
                    if tried == last
                    else FAILED
                )
                history += attempt(group, index, tried, sampled=sampled, seen=seen, status=end, evaluation=evaluation)
                if end is COMPLETED:
                    old = draw(st.integers(0, seen))
                    masked = {"stale": old} if old else {}
                    done.append(EpisodeTokens(episode=f"{group}-{index}-{tried}", trained=seen - old, masked=masked))
        how = draw(st.sampled_from(["open", "trained", "committed", *DropReason]))
        if evaluation is None and how in ("trained", "committed"):
            history.append(GroupTrained(run=RUN, group=group, step=1, episodes=tuple(done)))
            history += [committed(group)] if how == "committed" else []
        elif evaluation is None and how != "open":
            history.append(GroupDropped(run=RUN, group=group, reason=DropReason(how)))
    return draw(st.permutations(history)) if draw(st.booleans()) else history


@settings(deadline=None)
@given(history=histories(), cut=st.integers(0, 200))
def test_every_history_of_an_honest_trainer_balances_at_every_moment(history, cut):
    """Sums are exact and nothing is negative, cut off anywhere and in any order; tokens issued are the tokens sampled."""
    whole = Ledger.of(history)
    assert whole.balanced and not whole.gaps
    assert whole.tokens.issued == sum(len(e.token_ids) for e in history if isinstance(e, SegmentSampled))
    assert whole.episodes.issued == sum(isinstance(e, EpisodeOpened) for e in history)

    ordered = sorted(history, key=lambda e: isinstance(e, GroupTrained | GroupDropped | StepsCommitted))
    part = Ledger.of(ordered[:cut])
    assert part.episodes.balanced and part.tokens.balanced


@st.composite
def claimed_histories(draw: st.DrawFn) -> tuple[list[Event], dict[str, str]]:
    """Lines that commit, drop and roll back under claims, with late writers between; and the column of each group's tokens. A
    group has one attempt that completed."""
    history: list[Event] = []
    columns: dict[str, str] = {}
    commits: list[tuple[int, int, list[str]]] = []  # step, line and groups of those that count
    step = 0
    for line in range(1, draw(st.integers(1, 4)) + 1):
        history.append(claim(line))
        if commits and draw(st.booleans()):
            kept = draw(st.integers(1, len(commits)))
            columns |= {group: "dropped: rolled_back" for _, _, groups in commits[kept:] for group in groups}
            del commits[kept:]
            step, of_line, _ = commits[-1]
            history.append(rolled_back(step, line, f"{step}-{of_line}"))
        for _ in range(draw(st.integers(0, 3))):
            names = [f"g{len(columns) + place}" for place in range(draw(st.integers(1, 2)))]
            for name in names:
                history += attempt(name, sampled=4)
            late = [trained(names[0], x=(4, {})), dropped(names[0]), dropped(names[0], line - 1), committed(names[0])]
            history += draw(st.lists(st.sampled_from(late), max_size=2))
            how = draw(st.sampled_from(["committed", "dropped", "open"]))
            if how == "committed":
                step += 1
                groups = [trained(name, **{f"{name}_0_0": (4, {})}) for name in names]
                history += [account(step, line, *groups), *draw(st.sampled_from([[], groups]))]
                commits.append((step, line, names))
            elif how == "dropped":
                history += [dropped(name, line) for name in names]
            columns |= dict.fromkeys(names, {"committed": "trained", "dropped": "dropped: stale", "open": "in flight"}[how])
    return history, columns


@settings(deadline=None)
@given(drawn=claimed_histories(), cut=st.integers(0, 200))
def test_lines_that_follow_one_another_balance_at_every_moment(drawn, cut):
    """Each token is where the last word that counts has it, whatever late writers publish."""
    history, columns = drawn
    whole = Ledger.of(history)
    assert whole.balanced
    assert {name: tokens for name, (_, tokens) in in_use(whole).items() if name != "issued"} == {
        column: 4 * list(columns.values()).count(column) for column in columns.values()
    }
    assert Ledger.of(history[:cut]).balanced
