"""The series of a log as curves, and the stretch around an episode."""

import numpy as np
import pytest

from foreshock.inspection.finding import EpisodeKind, Movement
from foreshock.report.log_curves import around, logged_curve, nearest, whole
from tests.report.inspections import NAN, run_of, series, spike, spiked_run


def _restarted():
    """Steps 1 to 100, then again from 61 to 160; it spikes at 90 the first time only."""
    steps = np.r_[np.arange(1, 101), np.arange(61, 161)]
    values = np.full(200, 3.0)
    values[89] = 7.0
    return series("loss", values, steps, np.r_[np.zeros(100), np.ones(100)])


def test_what_a_restart_undid_is_apart() -> None:
    curve = logged_curve(_restarted())
    assert list(curve.steps) == list(range(1, 161))
    assert curve.values.max() == 3.0
    ((at, gone),) = curve.undone
    assert (at[0], at[-1], gone.max()) == (60, 100, 7.0)


def test_a_resume_without_going_back_undoes_nothing() -> None:
    curve = logged_curve(series("loss", [1, 2, 3, 4], [1, 2, 3, 4], [0, 0, 1, 1]))
    assert curve.undone == ()
    assert list(curve.steps) == [1, 2, 3, 4]


def test_a_million_values_become_few_and_keep_their_extremes() -> None:
    values = np.ones(1_000_000)
    values[777_777], values[5] = 9.0, NAN
    curve = logged_curve(series("loss", values), 3000)
    assert len(curve.steps) < 3100
    assert curve.longest == 1_000_000
    assert np.nanmax(curve.values) == 9.0
    assert [mark.step for mark in curve.marks] == [6]


def test_a_part_of_a_series() -> None:
    curve = logged_curve(_restarted(), first=80, last=95)
    assert (curve.steps[0], curve.steps[-1]) == (80, 95)
    assert curve.undone[0][1].max() == 7.0
    assert len(logged_curve(_restarted(), first=1000).steps) == 0


def test_around_an_episode_lies_what_was_before_and_after() -> None:
    part = around(spiked_run(), spike())
    loss, norm = part("loss"), part("grad_norm")
    assert loss is not None and norm is not None
    assert loss.steps[0] <= 178
    assert loss.steps[-1] >= 225
    assert loss.values.max() > 7
    assert (loss.clock[0], loss.clock[-1]) == (norm.clock[0], norm.clock[-1])
    assert part("loss_scale") is None


@pytest.mark.parametrize(("peak", "first_clock"), [(7.0, 77), (3.0, 117)])
def test_of_a_step_trained_twice_that_which_peaked_is_shown(peak: float, first_clock: int) -> None:
    moved = Movement(
        signal="loss", onset_step=89, peak_step=90, end_step=92, peak_value=peak, baseline=3.0
    )
    episode = spike(90, onset_step=89, end_step=92, movements=(moved,), first_mover="loss")
    loss = around(run_of(_restarted()), episode)("loss")
    assert loss is not None
    assert loss.values.max() == peak
    assert loss.clock[0] == first_clock


def test_a_restart_inside_the_stretch_is_known() -> None:
    loss = around(run_of(_restarted()), spike(100, movements=(), first_mover="loss"))("loss")
    assert loss is not None
    assert loss.restarts == (101,)


def test_a_long_open_episode_is_cut_where_its_onset_can_still_be_seen() -> None:
    run = spiked_run(100_000, at=200)
    loss = around(run, spike(end_step=None))("loss")
    assert loss is not None
    assert len(loss.steps) < 500
    plateau = around(run, spike(kind=EpisodeKind.PLATEAU, end_step=None))("loss")
    assert plateau is not None
    assert len(plateau.steps) > 90_000


def test_a_step_trained_twice_is_taken_where_it_is_nearest() -> None:
    one = _restarted()
    assert nearest(one, 90, 80) == 89
    assert nearest(one, 90, 190) == 129
    assert nearest(one, 90, 80, after=100) == 129


def test_the_whole() -> None:
    assert whole(_restarted()).restarts == (101,)
    assert len(whole(_restarted()).values) == 200
