"""Packing: prefix trees as rows. Trained tokens are drawn in brackets."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow_trainer.data.packing import PackedRow, Path, common_prefix, pack_group, plan_micro_batches, to_micro_batch


def drawn(*texts: str) -> list[Path]:
    """``"p q [a] t [b]"``: one path per text, tokens are letters."""
    paths, first = [], 0
    for text in texts:
        words = text.split()
        trained = [i for i, word in enumerate(words) if word.startswith("[")]
        paths.append(Path([ord(word.strip("[]")) for word in words], trained, first))
        first += len(trained)
    return paths


def letters(row: PackedRow) -> str:
    return "".join(map(chr, row.token_ids))


def test_a_shared_prompt_is_read_once() -> None:
    """The last trained token of a sample is not read at all: nothing is predicted from it."""
    [row] = pack_group(drawn("p q [a] [b]", "p q [c] [d] [e]"), row_tokens=100)

    assert letters(row) == "pqacd"
    assert row.positions == [0, 1, 2, 2, 3]
    assert [(pick.source, chr(pick.target)) for pick in row.picks] == [(1, "a"), (2, "b"), (1, "c"), (3, "d"), (4, "e")]


def test_branches_see_the_prefix_and_not_each_other() -> None:
    """Row ``p a | b c``: c sees p, b and itself."""
    [row] = pack_group(drawn("p [a] [x]", "p [b] [c] [y]"), row_tokens=100)
    mask = to_micro_batch([row]).mask_B1TT[0, 0]

    assert letters(row) == "pabc"
    assert mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]


def test_equal_answers_are_read_once_and_trained_each() -> None:
    """Two members that said the same are two terms of the loss."""
    [row] = pack_group(drawn("p [a] [b]", "p [a] [b]"), row_tokens=100)

    assert letters(row) == "pa"
    assert [(pick.token, pick.source) for pick in row.picks] == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_samples_of_several_turns_share_what_they_have_in_common() -> None:
    """A fork of one episode shares its first turn, tool answer included."""
    [row] = pack_group(drawn("p [a] t u [b]", "p a t u v [c] [d]"), row_tokens=100)

    assert letters(row) == "patuvc"


def test_a_group_that_is_too_long_for_a_row_takes_several() -> None:
    """Each row repeats the prefix; none is longer than the limit."""
    rows = pack_group(drawn("p q [a] [b] [z]", "p q [c] [d] [z]", "p q [e] [f] [z]"), row_tokens=6)

    assert [letters(row) for row in rows] == ["pqabcd", "pqef"]


def test_a_path_without_trained_tokens_vanishes() -> None:
    """Masked altogether: it would only cost time."""
    assert pack_group(drawn("p q r"), row_tokens=10) == []


def test_micro_batches_keep_the_budget() -> None:
    """Rows times the longest; a row beyond the budget goes alone."""
    rows = [PackedRow(token_ids=[0] * length) for length in (3, 9, 4, 4, 2)]
    plan = plan_micro_batches(rows, token_budget=8)

    assert [[len(row.token_ids) for row in batch] for batch in plan] == [[9], [4, 4], [3, 2]]


TOKENS = st.lists(st.integers(1, 3), min_size=2, max_size=9)


@st.composite
def groups_of_paths(draw: st.DrawFn) -> list[Path]:
    paths, first = [], 0
    for tokens in draw(st.lists(TOKENS, min_size=1, max_size=6)):
        trained = sorted(draw(st.sets(st.integers(1, len(tokens) - 1))))
        paths.append(Path(tokens, trained, first))
        first += len(trained)
    return paths


@given(groups_of_paths(), st.integers(1, 20))
def test_every_trained_token_is_picked_once_behind_its_own_history(paths: list[Path], row_tokens: int) -> None:
    """What a picked token's source sees, in order, is exactly what comes before the token in its sample."""
    rows = pack_group(paths, row_tokens=row_tokens)
    owners = {path.first + n: (path, index) for path in paths for n, index in enumerate(path.trained)}

    assert sorted(pick.token for row in rows for pick in row.picks) == sorted(owners)
    for row in rows:
        mask = to_micro_batch([row]).mask_B1TT[0, 0]
        for pick in row.picks:
            path, index = owners[pick.token]
            seen = sorted(mask[pick.source].nonzero().flatten().tolist(), key=lambda i: row.positions[i])
            assert [row.token_ids[i] for i in seen] == list(path.token_ids[:index])
            assert [row.positions[i] for i in seen] == list(range(index))
            assert pick.target == path.token_ids[index]


@given(groups_of_paths())
def test_a_row_holds_each_node_of_the_prefix_tree_once(paths: list[Path]) -> None:
    """As many tokens as there are different non-empty prefixes."""
    rows = pack_group(paths, row_tokens=10_000)
    prefixes = {tuple(path.inputs[: n + 1]) for path in paths if path.trained for n in range(len(path.inputs))}

    assert sum(len(row.token_ids) for row in rows) == len(prefixes)


@given(groups_of_paths(), st.integers(2, 20), st.integers(1, 60))
def test_padding_and_budget_lose_nothing(paths: list[Path], row_tokens: int, budget: int) -> None:
    """All rows are in exactly one micro-batch, and every target is where its pick says."""
    rows = pack_group(paths, row_tokens=row_tokens)
    plan = plan_micro_batches(rows, token_budget=budget)
    assert sorted(id(row) for batch in plan for row in batch) == sorted(map(id, rows))
    numbers = torch.cat([to_micro_batch(batch).tokens_K for batch in plan]) if plan else torch.tensor([])

    assert sorted(numbers.tolist()) == list(range(sum(len(path.trained) for path in paths)))
    assert all(len(b) == 1 or len(b) * max(len(r.token_ids) for r in b) <= budget for b in plan)


def test_common_prefix() -> None:
    """The shorter one bounds it."""
    assert (common_prefix([1, 2], [1, 2, 3]), common_prefix([1], [2]), common_prefix([], [1])) == (2, 0, 0)
