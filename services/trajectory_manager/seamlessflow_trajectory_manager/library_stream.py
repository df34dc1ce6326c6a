"""Reading along with a model that the ``renderers`` package parses: only its parser says what is reasoning and content.

So it is asked once for each stretch between think markers, when the stretch's first word is there; from then on the text is
followed. Whatever it does not confirm, and all that comes after a token of the tool grammar, waits for the whole answer.
A few families take back text for what comes behind it, such as a role's token in the middle of an answer; that is not known
here, and ``deltas`` counts it. Pure.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Container, Iterable, Sequence

from seamlessflow.text.markers import CALL, THINK, THOUGHT
from seamlessflow.text.spoken import Spoken
from seamlessflow.text.stops import num_held

from .parsing import Parsed
from .streaming import NOTHING, Shown, StopGate

_MARK = re.compile("|".join(map(re.escape, (THINK, THOUGHT, CALL))))
_MARKS = (THINK, THOUGHT, CALL)
_MAX_ASKED = 8
"""Times the parser is asked about one stretch; each time costs what was sampled so far."""
_TAG_CHARACTERS = 32
"""A tag of the tool grammar, until the token that closes the stream, is shorter."""


class LibraryStream:
    """``parse``: the whole answer's parser. ``grammar``: ids after which nothing is shown."""

    def __init__(
        self,
        spoken: Spoken,
        stops: Sequence[str],
        *,
        parse: Callable[[Sequence[int]], Parsed],
        grammar: Container[int],
        with_tools: bool,
    ) -> None:
        self._spoken, self._gate, self._parse = spoken, StopGate(stops), parse
        self._grammar, self._with_tools = grammar, with_tools
        self._ids = array("i")
        self._text = ""
        """Of this stretch, what was not shown yet."""
        self._part: str | None = None
        """What this stretch is: reasoning or content. None: not known yet."""
        self._has_thought = False
        self._is_closed = False
        self._num_asked = 0

    def feed(self, ids: Iterable[int]) -> Shown:
        reasoning = content = ""
        for each in ids:
            if self._is_closed or each in self._grammar:
                self._close()
                break
            self._ids.append(each)
            if new := self._gate.feed(self._spoken.add(each)):
                self._text += new
                shown = self._follow()
                reasoning, content = reasoning + shown[0], content + shown[1]
            if self._gate.is_closed:
                self._close()
        return reasoning, content

    def _follow(self) -> Shown:
        """What is new and certain, over the markers in it."""
        mark = _MARK.search(self._text)
        if mark is None:
            return self._show(is_whole=False)
        rest, self._text = self._text[mark.end() :], self._text[: mark.start()]
        reasoning, content = self._show(is_whole=True)
        self._pass(mark.group())
        if self._is_closed:
            return reasoning, content
        self._text = rest
        more = self._follow()
        return reasoning + more[0], content + more[1]

    def _pass(self, mark: str) -> None:
        """A stretch ends: only thoughts that are closed, and markers around nothing, let another follow."""
        if mark == CALL or self._part == "content" or (self._part == "reasoning" and mark != THOUGHT):
            self._close()
        self._part, self._num_asked = None, 0

    def _show(self, *, is_whole: bool) -> Shown:
        """Of this stretch. ``is_whole``: it ends here."""
        if self._part is None:
            self._text = self._text.lstrip()
            if not self._text:
                return NOTHING
            self._part = self._asked(is_whole=is_whole)
            if self._part is None:
                return NOTHING
        sure = self._text.rstrip() if is_whole else self._sure(self._text)
        self._text = self._text[len(sure) :]
        return (sure, "") if self._part == "reasoning" else ("", sure)

    def _asked(self, *, is_whole: bool) -> str | None:
        """Where the parser puts this stretch, of which nothing was shown yet."""
        if is_whole or (self._with_tools and self._text[0] in "{["):
            self._close()  # it ended before the parser confirmed it; or it may be a call without any marker
            return None
        self._num_asked += 1
        parsed, said = self._parse(self._ids), (self._text + self._gate.held).rstrip()
        if not parsed.tool_calls and not self._has_thought and parsed.reasoning == said and not parsed.content:
            self._has_thought = True
            return "reasoning"
        if not parsed.tool_calls and parsed.content == said:
            return "content"
        if self._num_asked >= _MAX_ASKED:
            self._close()
        return None

    def _sure(self, stretch: str) -> str:
        sure = stretch[: len(stretch) - num_held(stretch, _MARKS)]
        if self._with_tools:  # a tag of the tool grammar may have begun
            tag = sure.rfind("<", max(0, len(sure) - _TAG_CHARACTERS))
            sure = sure if tag < 0 else sure[:tag]
        return sure.rstrip()

    def _close(self) -> None:
        self._is_closed, self._text, self._ids = True, "", array("i")
