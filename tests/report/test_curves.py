"""Curves: what counts, what was undone, and extremes that survive thinning."""

import math
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from foreshock.report.curves import (
    MAX_MARKS,
    axis_limits,
    chosen_series,
    log_ticks,
    read_lineage,
    thin,
    wants_log,
)
from tests.report.runs import NAN, Script, one_rollback, same, view


@given(
    npst.arrays(np.float64, st.integers(1, 400), elements=st.floats(-1e9, 1e9) | st.just(math.nan)),
    st.integers(6, 60),
)
@settings(max_examples=150, deadline=None)
def test_thinning_keeps_the_extremes(values: np.ndarray, max_points: int) -> None:
    steps = np.arange(len(values), dtype=np.int64) * 3
    at, kept = thin(steps, values, max_points)
    assert len(at) <= max_points + 2
    assert (np.diff(at) > 0).all()
    assert np.array_equal(kept, values[at // 3], equal_nan=True)
    finite = values[~np.isnan(values)]
    if len(finite):
        assert np.nanmax(kept) == finite.max()
        assert np.nanmin(kept) == finite.min()
    assert np.isnan(kept).any() == np.isnan(values).any()
    assert (at[0], at[-1]) == (steps[0], steps[-1])


def test_infinities_break_the_line_and_do_not_stretch_it() -> None:
    _, kept = thin(np.arange(3), np.array([1.0, math.inf, -math.inf]), 10)
    assert kept[0] == 1.0
    assert np.isnan(kept[1:]).all()


def test_a_rollback_leaves_a_branch(tmp_path: Path) -> None:
    one_rollback(tmp_path / "run")
    curve = read_lineage(view(tmp_path / "run")).curve("loss/global")
    assert curve is not None
    assert curve.steps.tolist() == list(range(1, 201))
    ((at, values),) = curve.undone
    assert at.tolist() == list(range(100, 123))
    assert values[21] == 9
    assert float(curve.values.max()) < 9
    assert values[0] == curve.values[99]


def test_a_later_rollback_undoes_what_the_earlier_ones_kept(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(30)
    run.start(20)
    run.train(40)
    run.start(10)
    run.train(15)
    run.close()
    lineage = read_lineage(view(tmp_path / "run"))
    curve = lineage.curve("loss/global")
    assert curve is not None
    assert curve.steps.tolist() == list(range(1, 16))
    assert [at.tolist() for at, _ in curve.undone] == [
        *(list(range(10, 31)), list(range(21, 41))),
    ]
    assert lineage.num_undone == 20 + 20
    near = lineage.curve("loss/global", first=12, last=25)
    assert near is not None
    assert near.steps.tolist() == [12, 13, 14, 15]


def test_what_is_not_finite_is_marked(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(20, {5: [NAN, math.inf, 0, 1, 1], 18: [-math.inf, 1, 1, 1, 1]})
    run.start(10)
    run.train(20)
    run.close()
    curve = read_lineage(view(tmp_path / "run")).curve("loss/global")
    assert curve is not None
    assert [(mark.step, mark.undone) for mark in curve.marks] == [(5, False), (18, True)]
    assert math.isnan(curve.marks[0].value)
    assert math.isnan(curve.values[4])
    assert np.isfinite(curve.finite).all()


def test_a_flood_of_nans_is_bounded(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(1000, same(1, 1000, [NAN] * 5))
    run.close()
    curve = read_lineage(view(tmp_path / "run")).curve("loss/global")
    assert curve is not None
    assert len(curve.marks) == MAX_MARKS
    assert (curve.marks[0].step, curve.marks[-1].step) == (1, 1000)


def test_attempts_may_measure_other_series(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start(series=["loss/global"])
    run.train(5, same(1, 5, [1.0]))
    run.start(3, series=["grad_norm/global", "loss/global"])
    run.train(9, same(1, 9, [2.0, 3.0]))
    run.close()
    lineage = read_lineage(view(tmp_path / "run"))
    loss, norm = lineage.curve("loss/global"), lineage.curve("grad_norm/global")
    assert loss is not None
    assert norm is not None
    assert loss.values.tolist() == [1.0] * 3 + [3.0] * 6
    assert norm.steps.tolist() == [4, 5, 6, 7, 8, 9]
    assert lineage.curve("nothing/global") is None


def test_the_start_of_an_attempt_is_guessed_if_its_record_is_gone(tmp_path: Path) -> None:
    one_rollback(tmp_path / "run")
    (tmp_path / "run" / "decisions.jsonl").write_bytes(b"")
    lineage = read_lineage(view(tmp_path / "run"))
    assert [(part.start, part.kept_to) for part in lineage.parts] == [(0, 100), (100, None)]


def test_the_first_mover_gets_a_chart(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start(series=["grad_norm/blocks.3", "lr/global", "loss/global", "activation_norm/a"])
    run.close()
    one_rollback(tmp_path / "other")
    lineages = [read_lineage(view(tmp_path / name)) for name in ("run", "other")]
    assert chosen_series(lineages[1:], ["grad_norm/blocks.3", "loss/global"])[0] == "loss/global"
    assert "grad_norm/blocks.3" not in chosen_series(lineages[1:], ["grad_norm/blocks.3"])


def test_axes() -> None:
    assert wants_log(np.array([1.0, 100.0]))
    assert not wants_log(np.array([0.0, 100.0]))
    assert wants_log(np.array([0.0, 100.0]), always=True)
    assert not wants_log(np.zeros(3), always=True)
    for log in (True, False):
        for values in (np.zeros(0), np.array([3.0]), np.array([1e-40, 3e38])):
            low, high = axis_limits(values, log=log)
            assert low < high
            assert math.isfinite(low)
            assert math.isfinite(high)
            if log:
                assert 0 < len(log_ticks(low, high)) <= 8
