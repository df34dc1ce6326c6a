"""Figures over time in bounded memory: equal bins that double their width when there are too many. Pure.

Bins lie at whole multiples of their width, a power of two of seconds, so that what was added comes out the same in whichever
order it was added. Sums are exact; what is lost with wide bins is only where in a bin something happened.
"""

from __future__ import annotations

from math import floor

from .spans import Series

FINEST_SECONDS = 1 / 32


class _Grid:
    """Positions of bins. Subclasses have the columns."""

    def __init__(self, *columns: list[float], max_bins: int) -> None:
        self._columns, self._max_bins = columns, max_bins
        self.width = FINEST_SECONDS
        self._first = 0

    def __len__(self) -> int:
        return len(self._columns[0])

    def _make_room(self, since: float, until: float) -> None:
        """Have a bin for every moment from one to the other, both included."""
        while True:
            low, high = floor(since / self.width), floor(until / self.width)
            if len(self):
                low, high = min(low, self._first), max(high, self._first + len(self) - 1)
            if high - low < self._max_bins:
                break
            self._double()
        if not len(self):
            self._first = low
        for column in self._columns:
            column[:0] = [0.0] * (self._first - low)
            column.extend([0.0] * (high - low + 1 - len(column)))
        self._first = low

    def _double(self) -> None:
        if self._first % 2:  # a pair begins at an even place
            self._prepend()
        if len(self) % 2:
            for column in self._columns:
                column.append(0.0)
        self._merge_pairs()
        self._first //= 2
        self.width *= 2

    def _prepend(self) -> None:
        for column in self._columns:
            column.insert(0, 0.0)
        self._first -= 1

    def _merge_pairs(self) -> None:
        for column in self._columns:
            column[:] = [a + b for a, b in zip(column[::2], column[1::2], strict=True)]

    def _place(self, time: float) -> int:
        return floor(time / self.width) - self._first


class Sums(_Grid):
    """Something spread evenly over intervals: each bin has what falls into it."""

    def __init__(self, *, max_bins: int = 1024) -> None:
        self._sums: list[float] = []
        super().__init__(self._sums, max_bins=max_bins)

    def add(self, since: float, until: float, per_second: float = 1.0) -> None:
        """``per_second`` for each second between the two; nothing when ``until`` is not later."""
        if until <= since or not per_second:
            return
        self._make_room(since, until)
        width, place = self.width, self._place(since)
        while since < until:
            end = min(until, (self._first + place + 1) * width)
            self._sums[place] += (end - since) * per_second
            since, place = end, place + 1

    def within(self, since: float, until: float) -> list[tuple[float, float, float]]:
        """(from, to, sum) of each bin that an interval touches, empty ones included; in order, bins in their full width."""
        low, high = floor(since / self.width), floor(until / self.width)
        if high * self.width == until and high > low:
            high -= 1
        found = []
        for index in range(low, high + 1):
            place = index - self._first
            total = self._sums[place] if 0 <= place < len(self._sums) else 0.0
            found.append((index * self.width, (index + 1) * self.width, total))
        return found

    def series(self) -> Series:
        """The mean per second of each bin."""
        return Series(self._first * self.width, self.width, [total / self.width for total in self._sums])


class Level(_Grid):
    """A number that goes up and down at moments, such as the length of a queue; it begins at 0."""

    def __init__(self, *, max_bins: int = 4096) -> None:
        self._changes: list[float] = []
        self._moments: list[float] = []
        """Of each bin: its changes, each times the seconds from it to the end of the bin."""
        super().__init__(self._changes, self._moments, max_bins=max_bins)

    def change(self, time: float, by: float) -> None:
        """From this moment on it is so much more."""
        self._make_room(time, time)
        place = self._place(time)
        self._changes[place] += by
        self._moments[place] += by * ((self._first + place + 1) * self.width - time)

    def _merge_pairs(self) -> None:
        firsts = self._changes[::2]
        super()._merge_pairs()
        for place, change in enumerate(firsts):
            self._moments[place] += change * self.width

    def series(self, until: float) -> Series:
        """The mean of each bin, up to a moment; the last bin's is that of the part before it."""
        if not len(self):
            return Series(until, self.width, [])
        means, level = [], 0.0
        for index in range(self._first, max(floor(until / self.width), self._first) + 1):
            place = index - self._first
            change, moment = (self._changes[place], self._moments[place]) if place < len(self) else (0.0, 0.0)
            end = (index + 1) * self.width
            seconds = min(until, end) - index * self.width
            if seconds > 0:
                means.append((level * seconds + moment - change * max(0.0, end - until)) / seconds)
            level += change
        return Series(self._first * self.width, self.width, means)
