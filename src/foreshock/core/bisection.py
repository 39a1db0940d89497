"""Which of the samples set aside are needed to reproduce an incident: a search by replays."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Reproduces = Callable[[frozenset[int]], bool]
"""Whether an incident comes again if just these items are admitted; always the same answer."""


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """What a search found; `needed`, `undecided` and `cleared` share out all items.

    Attributes:
        needed: items of sets that reproduce, and that do not without any one of them.
        undecided: held because the budget was spent, or because a replay says otherwise.
        cleared: admitted together, they were replayed, and it did not come again.
        num_replays: replays made.
        reproduced: whether it came again with all items; else all are cleared.
        without_any: whether it came again without any, so that it is not theirs.
        minimal: whether nothing is undecided, and each needed item was seen to be needed.
    """

    needed: tuple[int, ...]
    undecided: tuple[int, ...]
    cleared: tuple[int, ...]
    num_replays: int
    reproduced: bool
    without_any: bool
    minimal: bool


class _SpentError(Exception):
    """The budget allows no further replay."""


class _Search:
    """Replays within a budget, of which one is kept back; none is made twice."""

    def __init__(self, reproduces: Reproduces, budget: int, is_spent: Callable[[], bool]) -> None:
        self._reproduces = reproduces
        self._left = budget
        self._is_spent = is_spent
        self.known: dict[frozenset[int], bool] = {}

    def test(self, items: frozenset[int], *, kept_back: int = 1) -> bool:
        if items not in self.known:
            if self._left <= kept_back or (kept_back and self._is_spent()):
                raise _SpentError
            self._left -= 1
            self.known[items] = self._reproduces(items)
        return self.known[items]

    def safe(self, cleared: frozenset[int], needed: set[int]) -> frozenset[int]:
        """What is cleared, if it was replayed as it is; else the most of it that was."""
        if not self.test(cleared, kept_back=0):
            return cleared
        found = [one for one, bad in self.known.items() if not bad and not one & needed]
        return max(found, key=len)  # the empty set is among them


def _never() -> bool:
    return False


def isolate(
    groups: Sequence[Sequence[int]],
    reproduces: Reproduces,
    *,
    budget: int,
    is_spent: Callable[[], bool] = _never,
) -> Isolation:
    """Find the items that are needed to reproduce, and clear all others.

    A set of cleared items grows: a group joins it if the two together do not reproduce, and
    is halved if they do, the largest first, so that each replay clears as much as it can. A
    single item that may not join is needed. If it does not reproduce alone, then with some
    of the cleared; the fewest of them that it takes, found by halving as well, are needed
    too, and are cleared no longer. What is cleared has always been replayed as a whole: items
    that only act together are never given back together.

    With d items that each reproduce alone, among n, it takes about 2 d log2(n / d) replays;
    with k that only act together about k log2(n) more.

    Args:
        groups: disjoint groups of items, to be halved in the order given: put together what
            is likely to be alike.
        reproduces: is asked for sets; that a larger set reproduces where a smaller one does
            is used to ask less. Where it is not so, more is held than need be, and what is
            cleared has been replayed all the same.
        budget: replays that may be made, at least 3.
        is_spent: whether no more may be made whatever the budget, as when time is up. Three
            are made all the same: with all, with none, and of the result.

    Raises:
        ValueError: a budget below 3, or an item twice.

    >>> found = isolate([range(100)], lambda kept: 41 in kept or {7, 80} <= kept, budget=60)
    >>> found.needed, len(found.cleared), found.minimal
    ((7, 41, 80), 97, True)

    Reference: Zeller and Hildebrandt 2002, "Simplifying and isolating failure-inducing input"
    (one-minimality); Junker 2004, "QuickXplain", algorithm 1 (what acts together); Hwang 1972
    (halving a group that has a member in it). Growing what is cleared instead of shrinking
    what fails: our choice, because it is what trains next.
    """
    listed = [item for group in groups for item in group]
    everything = frozenset(listed)
    if budget < 3:
        raise ValueError(f"budget={budget}: needs at least 3 replays: all, none, and the result")
    if len(everything) != len(listed):
        raise ValueError("an item is in two groups")
    search = _Search(reproduces, budget, is_spent)
    if not everything or not search.test(everything, kept_back=0):
        return _result(search, set(), everything, everything)
    if search.test(frozenset(), kept_back=0):
        return _result(search, set(), frozenset(), everything)
    needed: set[int] = set()
    certain = True
    grown = _Grown([tuple(group) for group in groups if group])
    try:
        while (group := grown.pop(search)) is not None:
            (item,) = group
            if not search.test(grown.cleared | {item}):  # inferred, and it is not so
                grown.cleared |= {item}
                continue
            needed.add(item)
            if search.test(frozenset({item})):
                continue
            try:
                partners = _fewest(search, frozenset({item}), sorted(grown.cleared))
            except _SpentError:
                certain = False
                raise
            needed |= partners
            grown.give_up(partners)
    except _SpentError:
        pass
    cleared = search.safe(grown.cleared, needed)
    return _result(search, needed, cleared, everything, certain=certain)


class _Grown:
    """What is cleared so far, and the groups that are still to be looked at."""

    def __init__(self, groups: Sequence[tuple[int, ...]]) -> None:
        self.cleared: frozenset[int] = frozenset()
        self._queue: list[tuple[int, int, tuple[int, ...]]] = []
        self._pushed = 0
        self._shrunk = 0
        self._siblings: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}
        self._bad: dict[tuple[int, ...], int] = {}
        for group in groups:
            self._push(group)

    def pop(self, search: _Search) -> tuple[int, ...] | None:
        """Clear what can be; return the next single item that cannot, None at the end."""
        while self._queue:
            group = self._queue[0][2]  # it stays there if the budget ends now
            # With its sibling cleared, a half has what its parent failed by.
            known = self._bad.pop(group, None) == self._shrunk
            bad = known or search.test(self.cleared | set(group))
            heapq.heappop(self._queue)
            if not bad:
                self.cleared |= set(group)
                if group in self._siblings:
                    sibling, shrunk = self._siblings[group]
                    self._bad[sibling] = shrunk
            elif len(group) == 1:
                return group
            else:
                self._halve(group)
        return None

    def give_up(self, items: frozenset[int]) -> None:
        """Clear some items no longer."""
        self.cleared -= items
        self._shrunk += 1

    def _halve(self, group: tuple[int, ...]) -> None:
        middle = (len(group) + 1) // 2
        first, second = group[:middle], group[middle:]
        self._siblings[first] = (second, self._shrunk)
        self._push(first)
        self._push(second)

    def _push(self, group: tuple[int, ...]) -> None:
        heapq.heappush(self._queue, (-len(group), self._pushed, group))
        self._pushed += 1


def _fewest(search: _Search, given: frozenset[int], items: Sequence[int]) -> frozenset[int]:
    """The fewest of `items` that reproduce with `given`, which do with all of them."""
    if len(items) <= 1:
        return frozenset(items)
    middle = len(items) // 2
    first, second = items[:middle], items[middle:]
    if search.test(given | set(first)):
        return _fewest(search, given, first)
    if search.test(given | set(second)):
        return _fewest(search, given, second)
    later = _fewest(search, given | set(first), second)
    if search.test(given | later):
        return later
    return later | _fewest(search, given | later, first)


def _result(
    search: _Search,
    needed: set[int],
    cleared: frozenset[int],
    everything: frozenset[int],
    *,
    certain: bool = True,
) -> Isolation:
    undecided = everything - cleared - needed
    return Isolation(
        needed=tuple(sorted(needed)),
        undecided=tuple(sorted(undecided)),
        cleared=tuple(sorted(cleared)),
        num_replays=len(search.known),
        reproduced=search.known.get(everything, False),
        without_any=search.known.get(frozenset(), False),
        minimal=certain and not undecided,
    )
