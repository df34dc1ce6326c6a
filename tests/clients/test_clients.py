"""Real, unmodified clients in a linear tool episode ("add 2 and 3") against the real data plane with a scripted model.

./task test:clients makes their environments and runs this; ./task test passes it over. For each client, and for each time the
engine stands still in the middle of its first two generations, while the weights change:

    finished   the program ends well and prints the right answer
    tree       roots, chains and forks are those of the roster, which says why where they are not one root with one chain
    once       every sampled token is trained in exactly one sample, under the version that sampled it
    invisible  every request is answered with 200, and there is none but those of an undisturbed episode

Found: every client's tree is the expected one, whatever the pauses. langchain, pydantic-ai and opencode write tool arguments
anew; langchain, autogen and openai-agents (chat) drop reasoning: none of that forks. autogen's second root (no tools offered)
and smolagents' (its calls rewritten as text) hold an earlier turn otherwise than it was sampled, so each counts as a fork.
"""

from __future__ import annotations

from collections import Counter

from seamlessflow.contracts import EpisodeStatus, Sample
from tests.clients.data_plane import Outcome
from tests.clients.scripted_model import words


def test_it_finishes_its_task(episode: Outcome) -> None:
    """The program exits with 0, having printed the answer that the model gave, whole and once."""
    assert (episode.ended.status, episode.ended.reason) == (EpisodeStatus.COMPLETED, "")
    assert episode.ended.reward == 1.0


def test_its_tree_is_the_expected_one(episode: Outcome) -> None:
    """The roster's numbers; fewer chains would train what was not shown, more would prefill what was."""
    ready, client = episode.ready, episode.client

    assert (ready.num_roots, len(ready.samples), ready.num_forks) == (client.num_roots, client.num_chains, client.num_forks)
    assert episode.ended.num_calls == client.num_calls


def test_every_sampled_token_is_in_exactly_one_sample(episode: Outcome) -> None:
    """The samples' trained spans are the generations, token for token and version for version, each once."""
    generations = episode.journal.values()

    assert Counter(_spans(episode)) == Counter((tuple(each.token_ids), tuple(each.versions)) for each in generations)
    assert episode.ready.num_sampled == sum(len(each.token_ids) for each in generations)
    assert episode.ready.num_undelivered == 0


def test_every_sample_is_what_the_engine_was_fed(episode: Outcome) -> None:
    """Each generation, behind its very prompt, is the beginning of a sample: nothing was encoded a second time."""
    paths = [list(sample.token_ids) for sample in episode.ready.samples]

    assert list(episode.journal) == list(episode.engine)
    for generation, sampled in episode.journal.items():
        fed = episode.engine[generation]
        whole = [*fed.prompt, *sampled.token_ids]
        assert fed.token_ids[: len(sampled.token_ids)] == sampled.token_ids
        assert any(path[: len(whole)] == whole for path in paths)


def test_what_the_model_says_behind_a_stop_text_is_not_sampled(episode: Outcome, stops: tuple[str, ...]) -> None:
    """Where the script goes on behind a text that the client gave as a stop, the turn ends with that text."""
    for stop, sampled in zip(stops, episode.journal.values(), strict=False):
        text = words().decode(sampled.token_ids)
        assert text.endswith(stop) and text.count(stop) == 1


def test_a_change_of_weights_in_the_middle_is_invisible(episode: Outcome) -> None:
    """The first two generations were drawn by two versions each; the client got one 200 for each request, and made no more."""
    first_two = list(episode.journal.values())[:2]

    assert [len(set(sampled.versions)) > 1 for sampled in first_two] == [True] * min(2, episode.client.num_calls)
    assert episode.num_posts == episode.client.num_calls
    assert set(episode.statuses) == {200}


def _spans(episode: Outcome) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ids and versions of every trained span of every sample."""
    return [span for sample in episode.ready.samples for span in _spans_of(sample)]


def _spans_of(sample: Sample) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    ids = list(sample.token_ids)
    versions = [version for version, count in sample.versions for _ in range(count)]
    spans, done = [], 0
    for start, end in sample.spans:
        spans.append((tuple(ids[start:end]), tuple(versions[done : done + end - start])))
        done += end - start
    return spans
