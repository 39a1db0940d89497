"""What every rank has of its own, on another number of ranks; and who follows a journal."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foreshock.core.errors import SnapshotError
from foreshock.journal import Journal
from foreshock.quiet_disk import QuietDisk
from foreshock.replicated import PerRankPart, _packed
from foreshock.snapshots.codec import digest
from foreshock.snapshots.parts import (
    GlobalRandomPart,
    NumpyGeneratorPart,
    Part,
    PythonRandomPart,
    TorchGeneratorPart,
)
from tests.simulated_disk import SimulatedDisk


class Together:
    """Ranks one after the other in this process: `said` is what each would have said."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.said: list[bytes] = []

    def exchange(self, _what: str, said: bytes) -> list[bytes]:
        return [*self.said[: self.rank], said, *self.said[self.rank + 1 :]]


def parts(size: int) -> list[tuple[PerRankPart, torch.Generator, Any]]:
    found: list[tuple[PerRankPart, torch.Generator, Any]] = []
    for rank in range(size):
        ranks: Any = Together(rank, size)
        generator = torch.Generator().manual_seed(1000 * size + rank)
        found.append((PerRankPart("noise", TorchGeneratorPart(generator), ranks), generator, ranks))
    return found


def captured(group: list[tuple[PerRankPart, torch.Generator, Any]]) -> Any:
    """What all ranks capture, which must be one tree."""
    said: list[bytes] = []
    for part, _, ranks in group:
        said.append(_packed(part._part.capture()))
        ranks.said = said
    for _, _, ranks in group:
        ranks.said = said
    trees = [part.capture() for part, _, _ in group]
    assert len({digest(tree) for tree in trees}) == 1
    return trees[0]


def draws(group: list[tuple[PerRankPart, torch.Generator, Any]]) -> list[float]:
    return [torch.rand((), generator=generator).item() for _, generator, _ in group]


def test_the_same_number_of_ranks_goes_on_bit_for_bit() -> None:
    group = parts(3)
    tree = captured(group)
    expected = draws(group)
    other = parts(3)
    for part, _, _ in other:
        part.restore(tree)
    assert digest(captured(other)) == digest(tree)
    assert draws(other) == expected
    assert len(set(expected)) == 3


def test_fewer_ranks_carry_the_states_of_the_others_along() -> None:
    four = parts(4)
    tree = captured(four)
    expected = draws(four)
    two = parts(2)
    for part, _, _ in two:
        part.restore(tree)
    assert digest(captured(two)) == digest(tree)
    assert draws(two) == expected[:2]
    back = parts(4)
    later = captured(two)
    for part, _, _ in back:
        part.restore(later)
    assert draws(back)[2:] == expected[2:]


def test_more_ranks_are_told_from_the_first_ones_once_they_have_gone_on() -> None:
    one = parts(1)
    tree = captured(one)
    assert isinstance(tree, torch.Tensor)  # a run on one rank has it as it always had
    three = parts(3)
    for part, _, _ in three:
        part.restore(tree)
    assert digest(captured(three)) == digest(tree)
    assert len(captured(three)["ranks"]) == 3


def test_ranks_that_are_new_draw_other_numbers() -> None:
    before = GlobalRandomPart().capture()
    kept = {"python": random.getstate(), "numpy": np.random.get_state()}
    state = torch.get_rng_state()
    try:
        seen: set[tuple[float, float, float]] = set()
        for rank in range(4):
            ranks: Any = Together(rank, 4)
            PerRankPart("random", GlobalRandomPart(), ranks).restore(before)
            seen.add((random.random(), np.random.random(), torch.rand(()).item()))
        assert len({one[0] for one in seen}) == 4
        assert len({one[1] for one in seen}) == 4
        assert len({one[2] for one in seen}) == 4
    finally:
        random.setstate(kept["python"])
        np.random.set_state(kept["numpy"])
        torch.set_rng_state(state)


GENERATORS: dict[str, Callable[[], tuple[Part, Callable[[], float]]]] = {
    "torch": lambda: of(
        TorchGeneratorPart, torch.Generator(), lambda g: torch.rand((), generator=g)
    ),
    "numpy": lambda: of(NumpyGeneratorPart, np.random.default_rng(0), lambda g: g.random()),
    "python": lambda: of(PythonRandomPart, random.Random(0), lambda g: g.random()),
}


def of(
    kind: Callable[[Any], Part], generator: Any, draw: Callable[[Any], Any]
) -> tuple[Part, Callable[[], float]]:
    return kind(generator), lambda: float(draw(generator))


@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.parametrize("own", [False, True])
def test_new_ranks_make_their_generator_from_the_first_ones_and_their_number(
    kind: str, own: bool
) -> None:
    """Each another, the same each time, and none that of the first."""
    first, _ = GENERATORS[kind]()
    tree = {"ranks": [first.capture()]} if own else first.capture()
    drawn: list[list[float]] = []
    for _ in range(2):
        seen: list[float] = []
        for rank in range(4):
            part, draw = GENERATORS[kind]()
            ranks: Any = Together(rank, 4)
            PerRankPart("noise", part, ranks, own=own).restore(tree)
            seen.append(draw())
        drawn.append(seen)
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 4


def test_where_each_rank_writes_its_own_its_tree_is_its_state_alone() -> None:
    ranks: Any = Together(1, 2)
    generator = torch.Generator().manual_seed(5)
    part = PerRankPart("noise", TorchGeneratorPart(generator), ranks, own=True)
    tree = part.capture()
    assert torch.equal(tree, generator.get_state())
    expected = torch.rand(3, generator=generator)
    part.restore(tree)
    assert torch.equal(torch.rand(3, generator=generator), expected)


def test_a_loaders_state_is_not_divided() -> None:
    tree = captured(parts(2))
    ranks: Any = Together(0, 3)
    part = PerRankPart("stream", TorchGeneratorPart(torch.Generator()), ranks, any_size=False)
    with pytest.raises(SnapshotError, match="captured on 2 ranks and cannot go on on 3"):
        part.restore(tree)


def test_who_follows_a_journal_has_the_same_records_and_writes_nothing() -> None:
    disk, run_dir = SimulatedDisk(), Path("/run/a")
    identity = {"version": "1", "program": "p", "fingerprint": "f", "stream": {}, "settings": {}}
    first = Journal.create(disk, run_dir, identity, lambda: 5.0)
    first.write("attempt_started", attempt=1, step=0)
    follower = Journal.follow(
        QuietDisk(), run_dir, first.identity, first.records, lambda: 9.0, last_attempt=1
    )
    changes = disk.num_changes
    for journal in (first, follower):
        journal.decided = type(journal.decided)()
        journal.open_readings(2, ["loss/global"])
        journal.open_provenance(2)
        journal.write("skip", attempt=2, step=3, grad_norm=float("nan"))
        journal.append_reading(3, 1, np.array([1.0], np.float32))
        journal.append_provenance(3, [4, 5])
    assert disk.num_changes > changes
    assert follower.decided.digest == first.decided.digest
    assert follower.last_attempt == first.last_attempt == 2
    assert [one["kind"] for one in follower.records] == ["attempt_started", "skip"]
    follower.write("skip", attempt=2, step=4, grad_norm=1.0)
    assert follower.decided.digest != first.decided.digest
    changes = disk.num_changes
    follower.close()
    assert disk.num_changes == changes
    first.close()


def test_a_record_that_not_all_have_is_not_written() -> None:
    disk, run_dir = SimulatedDisk(), Path("/run/a")
    identity = {"version": "1", "program": "p", "fingerprint": "f", "stream": {}, "settings": {}}
    journal = Journal.create(disk, run_dir, identity, lambda: 5.0)

    def refuse(record: dict[str, Any]) -> None:
        raise RuntimeError(record["kind"])

    journal.confirm = refuse
    with pytest.raises(RuntimeError, match="plan"):
        journal.write("plan", attempt=1, step=1)
    assert journal.records == []
    journal.confirm = None
    journal.close()
    assert Journal.read(disk, run_dir).records == []
