"""The search for what is needed to reproduce, against brute force."""

import itertools
import random
from collections.abc import Callable, Iterable

import pytest

from foreshock.core.bisection import Isolation, isolate

Culprits = tuple[frozenset[int], ...]


def acts(culprits: Culprits) -> Callable[[frozenset[int]], bool]:
    """Reproduces where all of one of these sets are there."""
    return lambda kept: any(one <= kept for one in culprits)


def minimal_sets(num: int, reproduces: Callable[[frozenset[int]], bool]) -> set[frozenset[int]]:
    """Every smallest set that reproduces, by trying all."""
    found: list[frozenset[int]] = []
    for size in range(num + 1):
        for items in map(frozenset, itertools.combinations(range(num), size)):
            if not any(one <= items for one in found) and reproduces(items):
                found.append(items)
    return set(found)


def check(found: Isolation, num: int, reproduces: Callable[[frozenset[int]], bool]) -> None:
    """What must hold of any result."""
    shared = [*found.needed, *found.undecided, *found.cleared]
    assert sorted(shared) == list(range(num))
    if not found.without_any:
        assert not reproduces(frozenset(found.cleared))


def groups_of(num: int, random_: random.Random) -> list[list[int]]:
    """The items in one group, or cut in two, in order or not."""
    items = list(range(num))
    if random_.random() < 0.3:
        random_.shuffle(items)
    cut = random_.randrange(num + 1)
    return random_.choice([[items], [items[:cut], items[cut:]]])


@pytest.mark.parametrize("seed", range(400))
def test_any_culprits_are_found_and_the_rest_is_given_back(seed: int) -> None:
    random_ = random.Random(seed)
    num = random_.randrange(1, 9)
    sizes = [random_.choice((1, 1, 2, 3)) for _ in range(random_.randrange(4))]
    culprits = tuple(frozenset(random_.sample(range(num), min(size, num))) for size in sizes)
    reproduces = acts(culprits)
    smallest = minimal_sets(num, reproduces)
    found = isolate(groups_of(num, random_), reproduces, budget=500)
    check(found, num, reproduces)
    assert found.minimal
    assert not found.undecided
    assert found.reproduced == bool(smallest)
    needed = set(found.needed)
    assert needed == set().union(*(one for one in smallest if one <= needed))
    if all(not a & b for a, b in itertools.combinations(smallest, 2)):
        assert needed == set().union(*smallest)


@pytest.mark.parametrize("seed", range(200))
def test_a_small_budget_holds_more_and_never_gives_back_what_reproduces(seed: int) -> None:
    random_ = random.Random(seed)
    num = random_.randrange(1, 40)
    culprits = tuple(
        frozenset(random_.sample(range(num), min(num, random_.choice((1, 2)))))
        for _ in range(random_.randrange(1, 6))
    )
    reproduces = acts(culprits)
    budget = random_.randrange(3, 30)
    asked: list[frozenset[int]] = []

    def counted(kept: frozenset[int]) -> bool:
        asked.append(kept)
        return reproduces(kept)

    found = isolate(groups_of(num, random_), counted, budget=budget)
    check(found, num, reproduces)
    assert found.num_replays == len(asked) == len(set(asked)) <= budget
    assert set(found.needed) <= frozenset().union(*culprits)
    assert frozenset(found.cleared) in asked


@pytest.mark.parametrize("seed", range(200))
def test_where_more_is_not_worse_the_given_back_has_still_been_replayed(seed: int) -> None:
    """A predicate without any order: nothing is promised but that."""
    random_ = random.Random(seed)
    num = random_.randrange(1, 12)
    said: dict[frozenset[int], bool] = {}

    def reproduces(kept: frozenset[int]) -> bool:
        everything_or_nothing = {0: False, num: True}
        return said.setdefault(kept, everything_or_nothing.get(len(kept), random_.random() < 0.5))

    found = isolate([range(num)], reproduces, budget=random_.randrange(3, 60))
    check(found, num, reproduces)


@pytest.mark.parametrize("culprit", [0, 1, 499, 500, 998, 999])
def test_one_among_a_thousand_takes_two_replays_a_halving_at_most(culprit: int) -> None:
    found = isolate([range(1000)], acts((frozenset({culprit}),)), budget=100)
    assert found.needed == (culprit,)
    assert found.minimal
    assert found.num_replays <= 2 + 2 * 10 + 1


@pytest.mark.parametrize("pair", [(0, 1), (3, 900), (499, 500), (998, 999)])
def test_a_pair_that_only_acts_together_is_held_together(pair: tuple[int, int]) -> None:
    found = isolate([range(1000)], acts((frozenset(pair),)), budget=100)
    assert found.needed == pair
    assert found.minimal
    assert len(found.cleared) == 998


@pytest.mark.parametrize(("start", "stop"), [(0, 160), (320, 640), (500, 501), (640, 800)])
def test_the_ends_of_a_bad_region_are_found_in_few_replays(start: int, stop: int) -> None:
    """A region of 800 samples, each bad by itself: the budget goes into its ends."""
    region = frozenset(range(start, stop))
    found = isolate([range(800)], lambda kept: bool(kept & region), budget=64)
    held = {*found.needed, *found.undecided}
    assert region <= held
    assert len(held - region) <= 0.05 * (800 - len(region))


@pytest.mark.parametrize("least", [2, 5])
def test_of_a_region_that_acts_by_its_mass_less_than_that_mass_goes_back(least: int) -> None:
    region = frozenset(range(40, 60))
    found = isolate([range(200)], lambda kept: len(kept & region) >= least, budget=2000)
    assert len(region & set(found.cleared)) < least
    assert set(found.needed) <= region
    assert found.minimal


def test_nobody() -> None:
    found = isolate([range(10)], lambda kept: False, budget=3)
    assert found.cleared == tuple(range(10))
    assert (found.reproduced, found.minimal, found.num_replays) == (False, True, 1)


def test_what_comes_without_any_of_them_is_not_theirs() -> None:
    found = isolate([range(10)], lambda kept: True, budget=3)
    assert found.undecided == tuple(range(10))
    assert (found.without_any, found.minimal, found.num_replays) == (True, False, 2)


def test_no_items() -> None:
    found = isolate([], lambda kept: True, budget=3)
    assert (found.needed, found.undecided, found.cleared, found.num_replays) == ((), (), (), 0)


@pytest.mark.parametrize(("groups", "budget"), [([[1, 2]], 2), ([[1], [2, 1]], 9)])
def test_what_cannot_be_searched_is_refused(groups: Iterable[list[int]], budget: int) -> None:
    with pytest.raises(ValueError, match=r"budget=2|two groups"):
        isolate(list(groups), lambda kept: True, budget=budget)


@pytest.mark.parametrize("most", [0, 1, 3, 5, 9, 20])
def test_when_time_is_up_it_ends_with_what_was_replayed(most: int) -> None:
    """As if the budget were spent: what is cleared was replayed as a whole, and does no harm."""
    asked: list[frozenset[int]] = []

    def reproduces(kept: frozenset[int]) -> bool:
        asked.append(kept)
        return 41 in kept or {7, 80} <= kept

    found = isolate([range(100)], reproduces, budget=500, is_spent=lambda: len(asked) >= most)
    assert len(asked) == found.num_replays <= max(3, most + 1)
    cleared = frozenset(found.cleared)
    assert not cleared or cleared in asked
    assert 41 not in cleared
    assert not {7, 80} <= cleared
    assert {*found.needed, *found.undecided, *cleared} == set(range(100))
    assert found.minimal is False
    assert found.reproduced
