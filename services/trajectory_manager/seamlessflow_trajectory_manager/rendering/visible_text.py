"""What a model's ids look like to a client: the one text that answers, deltas, logprobs and stop texts speak of. Pure.

Stop tokens and special tokens are no text, but for the markers of thoughts and calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from seamlessflow.tokenization.detokenizer import Spoken
from seamlessflow.tokenization.stop_strings import StopFound, first_stop
from seamlessflow.tokenization.tokenizer import ChatTokenizer


class Visible:
    """Text of one model. ``stop_token_ids``: those that end a turn."""

    def __init__(self, tokenizer: ChatTokenizer, stop_token_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.hidden_ids(stop_token_ids)

    def encode(self, text: str) -> list[int]:
        """Special tokens that are written in the text are recognised; none is added."""
        return self._tokenizer.encode(text)

    def text(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([each for each in ids if each not in self._hidden])

    def written(self, ids: Iterable[int]) -> str:
        """The text with all special tokens, stop tokens included."""
        return self._tokenizer.decode(list(ids))

    def texts(self, ids: Sequence[int]) -> tuple[str, ...]:
        """What each id adds to the text: a character of several tokens is the last one's, a hidden token adds nothing."""
        spoken = self.spoken()
        texts = [spoken.add(each) for each in ids]
        last = max((at for at, each in enumerate(ids) if each not in self._hidden), default=None)
        if last is not None:
            texts[last] += spoken.rest()
        return tuple(texts)

    def spoken(self) -> Spoken:
        """For reading along, id by id."""
        return Spoken(self._tokenizer.decode, self._hidden)

    def said(self, ids: Iterable[int], stops: Sequence[str]) -> tuple[str, StopFound | None]:
        """The text up to the first stop text, and that one."""
        text = self.text(ids)
        found = first_stop(text, stops)
        return (text, None) if found is None else (text[: found.start], found)

    def before(self, ids: Sequence[int], length: int) -> list[int]:
        """Ids of the first ``length`` characters of the text: what was sampled, but for a token that the cut goes through."""
        done = 0
        for at, text in enumerate(self.texts(ids)):
            if done == length:
                return list(ids[:at])
            if done + len(text) > length:
                return [*ids[:at], *self.encode(text[: length - done])]
            done += len(text)
        return list(ids)
