"""Alarms, and the state of detectors as plain trees."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from foreshock.core.detector import (
    Alarm,
    AlarmKind,
    Column,
    copy_state,
    state_from_tree,
    state_to_tree,
)
from foreshock.core.stats import RollingMedian
from foreshock.detectors.nonfinite import Nonfinite


@dataclass
class Memory:
    """A state that uses everything a detector's state may hold."""

    window: RollingMedian = field(default_factory=lambda: RollingMedian(3))
    sums: np.ndarray = field(default_factory=lambda: np.zeros((2, 2)))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(3, np.int64))
    columns: list[Column] = field(default_factory=lambda: [Column("a"), Column("b")])
    pair: tuple[float, RollingMedian] = field(default_factory=lambda: (0.0, RollingMedian(2)))
    by_name: dict[str, Column] = field(default_factory=lambda: {"x": Column("x")})
    recent: list[float] = field(default_factory=list)
    since: int | None = None
    ready: bool = False


def filled() -> Memory:
    memory = Memory()
    memory.window.add(2.5)
    memory.sums += [[1.0, math.nan], [math.inf, -0.0]]
    memory.counts[1] = 2**60
    memory.columns[1].flagged += [1.0, 2.0]
    memory.columns[0].excursion_start = 7
    memory.pair = (3.0, RollingMedian(2, [4.0]))
    memory.by_name["x"].excursion_start = 3
    memory.recent += [1e300, -1.0]
    memory.since, memory.ready = 5, True
    return memory


def plain(node: Any) -> Any:
    """The tree after JSON: only dicts, lists and scalars are left."""
    if isinstance(node, np.ndarray):
        return node.tolist()
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [plain(value) for value in node]
    assert node is None or isinstance(node, bool | int | float | str), type(node)
    return node


def test_a_state_survives_as_a_tree_and_even_as_json() -> None:
    tree = state_to_tree(filled())
    texts = []
    for carried in (tree, json.loads(json.dumps(plain(tree)))):
        back = state_from_tree(Memory(), carried)
        assert type(back.pair) is tuple
        assert isinstance(back.by_name["x"], Column)
        assert back.counts.dtype == np.int64
        assert back.window.median() == 2.5
        assert back.pair[1].values == [4.0]
        texts.append(repr(plain(state_to_tree(back))))
    assert texts == [repr(plain(tree))] * 2


def test_a_tree_is_independent_of_the_state_and_back() -> None:
    memory = filled()
    tree = state_to_tree(memory)
    before = repr(tree)
    back = state_from_tree(Memory(), tree)
    for one in (memory, back):
        one.sums[0, 0] = 9.0
        one.recent.append(9.0)
        one.columns[1].flagged.append(9.0)
        one.window.add(9.0)
    assert repr(tree) == before


def test_a_tree_of_other_series_is_refused() -> None:
    with pytest.raises(ValueError, match="argument"):
        state_from_tree([Column("a")], state_to_tree([Column("a"), Column("b")]))


def test_a_copied_state_is_independent() -> None:
    memory = filled()
    other = copy_state(memory)
    other.sums[0, 0] = 9.0
    other.window.add(9.0)
    assert memory.sums[0, 0] == 1.0
    assert memory.window.values == [2.5]


@pytest.mark.parametrize("value", [1.5, math.nan, math.inf, -math.inf])
def test_an_alarm_survives_strict_json(value: float) -> None:
    alarm = Alarm(
        kind=AlarmKind.SPIKE, detector="d", series="loss/global", step=5, onset_step=3, value=value
    )
    back = Alarm.from_json(json.loads(json.dumps(alarm.to_json(), allow_nan=False)))
    assert repr(back) == repr(alarm)
    assert isinstance(back.kind, AlarmKind)
    assert back.signal == "loss"


def test_a_block_of_the_wrong_shape_is_refused_with_both_shapes() -> None:
    rule = Nonfinite()
    state = rule.init(["loss/global", "loss/a"])
    with pytest.raises(ValueError, match=r"nonfinite.*\(3, 1\).*3 steps, 2 series"):
        rule.update(state, np.arange(3), np.zeros((3, 1)))


def test_alarms_are_frozen() -> None:
    alarm = Alarm(kind=AlarmKind.SPIKE, detector="d", series="s", step=1, onset_step=1, value=1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        alarm.step = 2  # type: ignore[misc]
