"""Who is missing, told from a store and a clock that the test holds."""

from typing import Any

import pytest

from foreshock.ranks.watchdog import BEAT_SECS, MISSED_BEATS, Watchdog


class Store(dict[str, bytes]):
    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


class World:
    """Ranks as their store shows them; `alive` ones give a sign of life whenever time passes."""

    def __init__(self, size: int, alive: set[int]) -> None:
        self.store, self.alive, self.now = Store(), alive, 0.0
        for rank in range(size):
            self.store.set(f"beat/{rank}", "0")

    def wait(self, secs: float) -> None:
        self.now += secs
        for rank in self.alive:
            self.store.set(f"beat/{rank}", str(int(self.now / BEAT_SECS)))

    def watchdog(self, rank: int, size: int) -> Watchdog:
        return Watchdog(self.store, rank, size, clock=lambda: self.now, wait=self.wait)


def test_everyone_came() -> None:
    world = World(3, {1, 2})
    for rank in (1, 2):
        world.watchdog(rank, 3).arrive(7)
    assert world.watchdog(0, 3).absent(7, 15.0) == []
    assert world.now == 0.0


def test_a_dead_rank_is_named_and_a_slow_one_is_not() -> None:
    world = World(4, {1, 3})
    world.watchdog(1, 4).arrive(7)
    world.watchdog(2, 4).arrive(6)
    (absent,) = world.watchdog(0, 4).absent(7, 60.0)
    assert absent.rank == 2
    assert "no sign of life" in absent.why
    assert world.now < 3 * MISSED_BEATS * BEAT_SECS  # and it did not wait for the slow one


def test_a_rank_that_lives_but_does_not_come() -> None:
    world = World(3, {1, 2})
    world.watchdog(1, 3).arrive(7)
    world.watchdog(2, 3).arrive(4)
    (absent,) = world.watchdog(0, 3).absent(7, 15.0)
    assert (absent.rank, absent.why) == (2, "alive, but last seen at meeting 4")


def test_who_comes_when_the_others_have_given_up_is_named() -> None:
    world = World(3, {1, 2})
    watchdog = world.watchdog(0, 3)
    world.watchdog(1, 3).arrive(7)

    def late(secs: float) -> None:
        world.wait(secs)
        world.watchdog(2, 3).arrive(7)

    watchdog._wait = late
    (absent,) = watchdog.absent(7, 15.0, overdue=True)
    assert (absent.rank, absent.why) == (2, "alive, but came too late")


def test_a_rank_that_stopped_for_a_reason_of_its_own() -> None:
    world = World(3, {1, 2})
    world.watchdog(2, 3).stopped("ValueError: no such file", own=True)
    world.watchdog(1, 3).stopped("step 4", own=False)
    (absent,) = world.watchdog(0, 3).absent(None, 15.0)
    assert (absent.rank, absent.why) == (2, "stopped: ValueError: no such file")


def test_ranks_that_stopped_because_of_others_are_not_named() -> None:
    world = World(3, {1})
    world.watchdog(1, 3).stopped("step 4", own=False)
    (absent,) = world.watchdog(0, 3).absent(None, 60.0)
    assert absent.rank == 2


def test_a_store_that_is_gone_names_nobody() -> None:
    class Gone(Store):
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("connection reset")

    world = World(2, set())
    world.store = Gone()
    assert world.watchdog(0, 2).absent(1, 15.0) == []


def test_signs_of_life_end_with_the_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foreshock.ranks.watchdog.BEAT_SECS", 0.01)
    store: Any = Store()
    watchdog = Watchdog(store, 0, 2)
    watchdog.start()
    while store["beat/0"] == b"0":
        pass
    watchdog.close()
    watchdog.close()
    before = store["beat/0"]
    assert watchdog._thread is not None
    assert not watchdog._thread.is_alive()
    assert store["beat/0"] == before
