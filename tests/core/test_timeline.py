"""The recent past: bounded, rewindable, restorable."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.core.timeline import Timeline

A, B = "loss/global", "grad_norm/global"


def of(steps: list[int], capacity: int = 8) -> Timeline:
    line = Timeline([A, B], capacity)
    for step in steps:
        line.append(1, step, step % 3 > 0, [float(step), 10.0 * step])
    return line


OPS = st.lists(st.one_of(st.tuples(st.just("go"), st.integers(1, 4)),
                         st.tuples(st.just("back"), st.integers(0, 12)),
                         st.tuples(st.just("restore"), st.just(0))), max_size=60)  # fmt: skip


@settings(max_examples=60)
@given(st.integers(1, 6), OPS)
def test_it_is_a_list_of_the_last_rows(capacity: int, ops: list[tuple[str, int]]) -> None:
    line, rows, step = Timeline([A, B], capacity), [], 0
    for attempt, (op, amount) in enumerate(ops):
        if op == "go":
            step += amount
            line.append(attempt, step, bool(amount % 2), [float(step), -float(step)])
            rows = [*rows, (attempt, step, bool(amount % 2), float(step))][-capacity:]
        elif op == "back":
            step = max(0, step - amount)
            line.rewind(step)
            rows = [row for row in rows if row[1] <= step]
        else:
            tree, line = line.to_tree(), Timeline([A, B], capacity)
            line.load_tree(tree)
        assert len(line) == len(rows)
        told = zip(
            line.attempts.tolist(), line.steps.tolist(), line.committed.tolist(),
            line.values(A).tolist(), strict=True,
        )  # fmt: skip
        assert list(told) == rows
        assert line.values(B).tolist() == [-row[3] for row in rows]


def test_windows_include_both_ends() -> None:
    line = of([2, 4, 6, 8])
    assert line.values(A, 4, 6).tolist() == [4.0, 6.0]
    assert line.values(A, 3, 7).tolist() == [4.0, 6.0]
    assert line.values(A, None, 3).tolist() == [2.0]
    assert line.values(A, 7, None).tolist() == [8.0]
    assert line.values(A, 9, 3).tolist() == []
    assert line.values("lr/global", 2, 8).tolist() == []
    assert line.readings("lr/global") == []


def test_skipped_steps_can_be_left_out() -> None:
    assert of([1, 2, 3, 4]).values(A, 2, 4, committed_only=True).tolist() == [2.0, 4.0]


def test_readings_carry_where_they_are_from() -> None:
    (reading,) = of([2, 4]).readings(B, 4, 4)
    assert reading == (1, 4, "grad_norm", "global", 40.0)


@pytest.mark.parametrize("step", [4, 3, -1])
def test_time_does_not_run_backwards_unasked(step: int) -> None:
    line = of([2, 4])
    with pytest.raises(ValueError, match="rewind first"):
        line.append(1, step, True, [0.0, 0.0])
    assert line.steps.tolist() == [2, 4]


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0], []])
def test_a_row_has_one_value_a_series(values: list[float]) -> None:
    line = of([2])
    with pytest.raises(ValueError, match="for 2 series"):
        line.append(1, 3, True, values)
    assert len(line) == 1


def test_no_rows_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity is 0"):
        Timeline([A], 0)


def test_a_restored_timeline_is_independent_and_matched_by_name() -> None:
    line = of([1, 2, 3])
    tree = line.to_tree()
    other = Timeline(["lr/global", B], 8)
    other.load_tree(tree)
    line.rewind(1)
    line.append(2, 2, True, [math.inf, math.inf])
    assert other.values(B).tolist() == [10.0, 20.0, 30.0]
    assert np.isnan(other.values("lr/global")).all()
    assert other.attempts.tolist() == [1, 1, 1]


@pytest.mark.parametrize("rows", [5, 8, 9, 40])
def test_a_smaller_timeline_restores_the_latest_rows(rows: int) -> None:
    tree = of(list(range(rows)), capacity=64).to_tree()
    small = Timeline([A, B], 4)
    small.load_tree(tree)
    assert small.steps.tolist() == list(range(rows - 4, rows))
    assert small.values(B).tolist() == [10.0 * step for step in range(rows - 4, rows)]


def test_a_value_given_out_before_may_not_change_with_time() -> None:
    line = of([1, 2, 3], capacity=3)
    readings = line.readings(A)
    for step in range(4, 40):
        line.append(1, step, True, [0.0, 0.0])
    assert [reading.value for reading in readings] == [1.0, 2.0, 3.0]
