"""Meetings of real ranks: what each says is heard, and who is alone with it is named."""

import errno
import time
from typing import Any

import pytest
import torch

from foreshock.core.errors import ConfigError, RunDirError, SnapshotError
from foreshock.ranks.agreement import RankError, Ranks, _odd
from foreshock.ranks.ordered_sum import ordered_mean
from tests.ranks.outcomes import outcomes
from tests.ranks.processes import on_ranks


def raised(act: Any, ranks: Ranks | None = None) -> tuple[str, str, Any]:
    try:
        act()
    except Exception as error:
        if ranks is not None:  # it is raised again and again, until somebody forgives it
            assert ranks.failure is error
            with pytest.raises(RankError):
                ranks.exchange("another", b"")
            ranks.failure = None
        return type(error).__name__, str(error), getattr(error, "ranks", None)
    return "", "", None


def meet(rank: int, world: int) -> dict[str, Any]:
    ranks = Ranks(timeout_secs=30)
    found: dict[str, Any] = {}
    # Of any length, on one rank or on all, and none at all.
    sizes = [0, 3, 1013, 1014, 5000]
    found["said"] = [
        ranks.exchange(f"size {size} of {who}", b"%d" % rank * (size if who in (rank, -1) else 0))
        == [b"%d" % one * (size if who in (one, -1) else 0) for one in range(world)]
        for size in sizes
        for who in (-1, 0, 1)
    ]
    ranks.agree("alike", {"weights": "a", "step": "1"})
    found["odd"] = raised(
        lambda: ranks.agree("step 9", {"weights": "ab"[rank == 1], "step": "1"}), ranks
    )
    found["each"] = raised(lambda: ranks.agree("step 9", {"weights": str(rank)}), ranks)
    found["place"] = raised(lambda: ranks.exchange("plan" if rank != 2 else "snapshot", b""), ranks)
    # They go on together after all that: nobody was left waiting.
    found["first"] = ranks.from_first("value", lambda: {"of": rank, "text": "x" * 5000})

    def refuse() -> None:
        raise RunDirError("it is in use")

    def fail() -> None:
        raise OSError(errno.ENOSPC, "no space")

    found["refused"] = raised(lambda: ranks.from_first("value", refuse))
    found["full"] = raised(lambda: ranks.from_first("value", fail))
    found["one"] = raised(
        lambda: ranks.all_or_none("reading", refuse if rank == 1 else lambda: 4, SnapshotError)
    )
    found["all"] = ranks.all_or_none("reading", lambda: 4, SnapshotError)
    ranks.close()
    return found


def test_meetings_of_three_ranks() -> None:
    everyone = on_ranks(meet, 3)
    for rank, found in enumerate(everyone):
        assert found["said"] == [True] * 15
        kind, text, ranks = found["odd"]
        assert (kind, ranks) == ("RankError", (1,))
        assert text.startswith("step 9: rank 1 differs from the other 2 in weights.")
        assert found["each"][2] == (0, 1, 2)
        assert "without a majority" in found["each"][1]
        kind, text, ranks = found["place"]
        assert (kind, ranks) == ("RankError", (2,))
        assert "rank 2 is at snapshot" in text
        assert "the others at plan" in text
        assert found["first"] == {"of": 0, "text": "x" * 5000}
        elsewhere = "" if rank == 0 else "on rank 0: "
        assert found["refused"][:2] == ("RunDirError", f"{elsewhere}it is in use")
        assert found["full"][0] == "OSError"
        assert f"[Errno {errno.ENOSPC}]" in found["full"][1]
        kind, text, _ = found["one"]
        assert kind == ("RunDirError" if rank == 1 else "SnapshotError")
        assert ("rank 1: RunDirError: it is in use" in text) == (rank != 1)
        assert found["all"] == 4


def test_who_is_outside_the_majority() -> None:
    assert _odd(["a", "b", "a"]) == [1]
    assert _odd(["a", "b"]) == [0, 1]
    assert _odd(["a", "a", "b", "b"]) == [0, 1, 2, 3]
    assert _odd(["a", "b", "c"]) == [0, 1, 2]
    assert _odd(["b", "a", "a", "a"]) == [0]


def test_a_rank_that_is_alone_asks_nobody() -> None:
    ranks = Ranks()
    assert ranks.exchange("x", b"y") == [b"y"]
    assert ranks.from_first("x", lambda: 3) == 3
    ranks.agree("x", {"a": "b"})
    assert ranks.explain("x", RuntimeError("gloo: connection closed by peer")) is None
    ranks.give_up(RuntimeError())
    ranks.close()
    with pytest.raises(ConfigError, match="above 0"):
        Ranks(timeout_secs=0)


def loses_one(rank: int, world: int, how: str) -> tuple[str, tuple[int, ...], float]:
    ranks = Ranks(timeout_secs=3)
    ranks.exchange("all are there", b"")
    if rank == 1:
        if how == "raises":
            error = ValueError("my own fault")
            ranks.give_up(error)
            raise error
        time.sleep(8)
    begun = time.monotonic()
    try:
        ranks.exchange("the next meeting", b"")
    except RankError as error:
        return str(error), error.ranks, time.monotonic() - begun
    raise AssertionError("nobody was missed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "why"), [("sleeps", "alive, but came too late"), ("raises", "my own fault")]
)
def test_a_rank_that_does_not_come_is_named(how: str, why: str) -> None:
    found = outcomes(loses_one, 3, how)
    for rank in (0, 2):
        text, ranks, _ = found[rank].result
        assert ranks == (1,)
        assert text.startswith("the next meeting: rank 1 (")
        assert why in text


def sums(rank: int, world: int) -> list[torch.Tensor]:
    """The same numbers at other places of buckets of other sizes."""
    numbers = torch.randn(1000, generator=torch.Generator().manual_seed(rank))
    found: list[torch.Tensor] = []
    for shift in (0, 1, 333, 700):

        class Bucket:
            flat = torch.cat([torch.zeros(shift), numbers, torch.zeros(shift // 2)])

            def buffer(self) -> torch.Tensor:
                return self.flat

        bucket: Any = Bucket()
        whole = ordered_mean(None, bucket).wait()
        found.append(whole[shift : shift + 1000].clone())
    return found


def test_ordered_sums_do_not_depend_on_the_bucket() -> None:
    world = 3
    everyone = on_ranks(sums, world)
    parts = [torch.randn(1000, generator=torch.Generator().manual_seed(one)) for one in range(3)]
    expected = (parts[0] + parts[1] + parts[2]) / world
    for found in everyone:
        for one in found:
            assert torch.equal(one, expected)
