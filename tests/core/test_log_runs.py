"""Runs, restarts, late prints and clocks."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.core import log_runs, log_steps
from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder

NAN = float("nan")


def read(steps, *, label="loss", values=None, before=None):
    """The log of rows with these steps; `before` does something at some row."""
    log = LogBuilder()
    for row, step in enumerate(steps):
        if before and row in before:
            before[row](log)
        value = float(row) if values is None else values[row]
        log.row(step, [(label, value)], line=row + 1)
    return log.finish(path="x", format="y", title="z")


def resumed(log):
    log.event(EventKind.RESUMED)


def new_run(log):
    log.new_run()


def loss_of(log, run=0):
    return log.runs[run].series["loss"]


def test_a_restart_is_another_attempt_and_the_clock_goes_on():
    log = read([100, 200, 300, 400, 300, 400, 500])
    (run,) = log.runs
    assert run.restarts == ((400, 300),)
    loss = loss_of(log)
    assert loss.steps.tolist() == [100, 200, 300, 400, 300, 400, 500]
    assert loss.attempts.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert loss.clock.tolist() == [100, 200, 300, 400, 401, 501, 601]


def test_clocks_of_all_series_of_a_run_agree():
    log = LogBuilder()
    for step in [*range(1, 101), *range(51, 121)]:
        log.row(step, [("loss", 1.0)])
        if step % 50 == 0:
            log.row(step, [("val loss", 2.0)])
    series = log.finish(path="", format="", title="").runs[0].series
    assert series["eval_loss"].steps.tolist() == [50, 100, 100]
    assert series["eval_loss"].attempts.tolist() == [0, 0, 1]
    where = series["loss"].steps.tolist().index(100, 100)
    assert series["eval_loss"].clock.tolist() == [50, 100, series["loss"].clock[where]]


def test_several_restarts():
    log = read([10, 20, 30, 40, 20, 30, 40, 50, 30, 40, 50, 60])
    (run,) = log.runs
    assert run.restarts == ((40, 20), (50, 30))
    assert loss_of(log).attempts.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert (np.diff(loss_of(log).clock) > 0).all()


def test_a_fall_to_the_beginning_is_another_run():
    log = read([1, 2, 3, 4, 5, 1, 2, 3])
    assert [run.number for run in log.runs] == [1, 2]
    assert [len(loss_of(log, run)) for run in (0, 1)] == [5, 3]
    assert loss_of(log, 1).clock.tolist() == [1, 2, 3]
    assert loss_of(log, 1).attempts.tolist() == [0, 0, 0]
    assert log.runs[0].restarts == log.runs[1].restarts == ()
    assert "the file holds 2 runs, one after the other" in log.notes


def test_an_excerpt_that_falls_back_to_its_own_first_step_was_restarted():
    log = read([7000, 7010, 7020, 7030, 7000, 7010, 7020])
    assert log.runs[0].restarts == ((7030, 7000),)


def test_a_run_that_begins_before_an_excerpt_did_is_another_one():
    assert len(read([7000, 7010, 7020, 10, 20, 30]).runs) == 2


def test_a_resume_that_is_announced_is_an_attempt_without_going_back():
    log = read([1, 2, 3, 4, 5], before={3: resumed})
    (run,) = log.runs
    assert run.restarts == ((3, 4),)
    assert loss_of(log).attempts.tolist() == [0, 0, 0, 1, 1]
    assert loss_of(log).clock.tolist() == [1, 2, 3, 4, 5]


def test_a_resume_at_the_beginning_is_none():
    log = read([51, 52], before={0: resumed})
    assert log.runs[0].restarts == ()
    assert [event.step for event in log.runs[0].events] == [51]

    def later(log):
        log.row(None, [("loss_scale", 1.0)])
        resumed(log)

    assert loss_of(read([51, 52], before={0: later})).attempts.tolist() == [0, 0]


def test_resumes_and_runs_that_are_announced_both_count():
    log = read([10, 20, 30, 40, 50], before={1: resumed, 3: new_run})
    assert [loss_of(log, run).attempts.tolist() for run in (0, 1)] == [[0, 1, 1], [0, 0]]


def test_an_announced_resume_and_its_fall_are_one_restart():
    def say(log):
        resumed(log)
        log.row(None, [("loss_scale", 1.0)])  # said between the resume and the first record
        resumed(log)

    log = read([10, 20, 30, 40, 20, 30, 40], before={4: say})
    (run,) = log.runs
    assert run.restarts == ((40, 20),)
    assert loss_of(log).attempts.max() == 1
    assert run.series["loss_scale"].attempts.tolist() == [1]


def test_an_announced_run_is_one_whatever_its_steps():
    log = read([100, 200, 300, 400, 500], before={2: new_run})
    assert [loss_of(log, run).steps.tolist() for run in (0, 1)] == [[100, 200], [300, 400, 500]]


def test_a_row_printed_late_is_put_in_order():
    log = read([1, 2, 4, 5, 3, 6, 7])
    (run,) = log.runs
    assert run.restarts == ()
    assert loss_of(log).steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert loss_of(log).values.tolist() == [0, 1, 4, 2, 3, 5, 6]
    assert loss_of(log).lines.tolist() == [1, 2, 5, 3, 4, 6, 7]
    assert "1 rows were printed late and were put in order" in log.notes


def test_a_few_rows_printed_late_are_put_in_order():
    log = read([10, 11, 12, 16, 17, 18, 13, 14, 15, 19, 20, 21])
    assert log.runs[0].restarts == ()
    assert loss_of(log).steps.tolist() == list(range(10, 22))


def test_a_short_redo_is_a_restart_not_a_late_print():
    log = read([10, 11, 12, 11, 12, 13, 14])
    assert log.runs[0].restarts == ((12, 11),)
    assert loss_of(log).steps.tolist() == [10, 11, 12, 11, 12, 13, 14]


def test_two_processes_that_print_all_steps_are_one_run():
    steps = [s for step in range(1, 200) for s in (step + 1, step)]
    values = [NAN if (row % 40 == 1) else 1.0 for row in range(len(steps))]
    log = read(steps, values=values)
    (run,) = log.runs
    assert run.restarts == ()
    assert loss_of(log).steps.tolist() == list(range(1, 201))
    assert np.isnan(loss_of(log).values).sum() == 10


def test_of_a_step_logged_twice_the_first_value_or_the_nan_stays():
    log = read([1, 1, 2, 2, 3, 3, 3], values=[1.0, 9.0, 2.0, NAN, 3.0, np.inf, NAN])
    np.testing.assert_equal(loss_of(log).values, [1.0, NAN, np.inf])
    assert loss_of(log).lines.tolist() == [1, 4, 6]
    assert len(log.notes) == 1


def test_a_step_logged_twice_with_the_same_value_is_not_worth_a_note():
    log = read([1, 1, 2], values=[1.0, 1.0, 2.0])
    assert loss_of(log).values.tolist() == [1.0, 2.0]
    assert log.notes == ()


def test_a_log_without_steps_numbers_its_values():
    log = LogBuilder()
    log.row(None, [("epoch", 0.0)])
    for value in (3.0, 2.0, 1.0):
        log.row(None, [("loss", value), ("grad_norm", value)])
        log.row(None, [("val loss", value)])
    (run,) = log.finish(path="", format="", title="").runs
    assert not run.has_steps
    assert run.series["loss"].clock.tolist() == run.series["grad_norm"].clock.tolist() == [1, 2, 3]
    assert run.series["eval_loss"].clock.tolist() == [1, 2, 3]
    assert run.series["epoch"].steps.tolist() == [1]


def test_a_column_that_stands_still_counts_no_steps():
    log = read([step // 100 for step in range(500)])
    (run,) = log.runs
    assert not run.has_steps
    assert loss_of(log).clock.tolist() == list(range(1, 501))


def epochs_of(lengths, first=1):
    return [step for length in lengths for step in range(first, length + first)]


@pytest.mark.parametrize("first", [0, 1])
def test_steps_that_begin_anew_in_every_epoch_are_counted_through(first):
    steps = epochs_of([50, 50, 50, 50], first)
    log = read(steps, values=[200.0 - row for row in range(200)])
    (run,) = log.runs
    assert run.restarts == ()
    assert loss_of(log).steps.tolist() == list(range(first, 200 + first))
    assert "steps begin anew in every epoch: they were counted through" in log.notes


def test_epochs_that_are_logged_every_so_often():
    log = read([0, 50, 100, 150] * 4, values=[100.0 - row for row in range(16)])
    assert loss_of(log).steps.tolist() == list(range(0, 800, 50))


def test_epochs_of_any_length_if_the_log_names_them():
    log = LogBuilder()
    for epoch, length in enumerate((30, 20)):
        for step in range(1, length + 1):
            log.row(step, [("loss", 1.0), ("epoch", float(epoch))])
    (run,) = log.finish(path="", format="", title="").runs
    assert run.series["loss"].steps.tolist() == list(range(1, 51))


def test_runs_of_equal_length_whose_loss_begins_anew_are_runs():
    values = [10.0 / (1 + row) for _ in range(4) for row in range(50)]
    assert len(read(epochs_of([50] * 4), values=values).runs) == 4


def test_runs_of_equal_length_that_name_their_first_epoch_again_are_runs():
    log = LogBuilder()
    for _ in range(4):
        for step in range(1, 51):
            log.row(step, [("loss", 1.0), ("epoch", 0.0)])
    assert len(log.finish(path="", format="", title="").runs) == 4


def test_a_column_that_counts_steps_of_its_own_gets_those_of_the_run():
    log = LogBuilder()
    for step in range(1, 101):
        log.row(step, [("loss", 1.0)])
        if step % 10 == 0:
            for place in range(5):
                log.row(place, [("val loss", step + place / 10)])
    read = log.finish(path="", format="", title="")
    evaluated = read.runs[0].series["eval_loss"]
    assert len(evaluated) == 50
    assert evaluated.steps.tolist() == [step for step in range(10, 101, 10) for _ in range(5)]
    assert evaluated.values.tolist() == sorted(evaluated.values)
    assert (np.diff(evaluated.clock) > 0).all()
    assert "the steps of 'val loss' are not those of the run: it has the run's" in read.notes


def test_words_between_two_runs():
    def between(log):
        log.event(EventKind.OVERFLOW, line=1)
        log.event(EventKind.STOPPED, line=2)
        log.event(EventKind.OVERFLOW, line=3)

    one, two = read([1, 2, 3, 1, 2, 3], before={3: between}).runs
    assert [(event.line, event.step) for event in one.events] == [(1, 3), (2, 3)]
    assert [(event.line, event.step) for event in two.events] == [(3, 1)]


def test_too_many_runs_are_not_told_apart(monkeypatch):
    monkeypatch.setattr(log_runs, "_MAX_RUNS", 3)
    log = read([1, 2, 3] * 2, before=dict.fromkeys(range(1, 6), new_run))
    assert len(log.runs) == 3
    assert "the steps go back too often: later restarts are not told apart" in log.notes


steps_of_rows = st.lists(
    st.one_of(st.none(), st.integers(0, 30), st.integers(0, 2**48)), min_size=1, max_size=80
)


@given(steps_of_rows)
@settings(max_examples=400, deadline=None)
def test_no_value_is_lost_except_of_a_step_logged_twice(steps):
    log = read(steps)
    kept = [
        (a, s, v)
        for run in log.runs
        for one in run.series.values()
        for a, s, v in zip(one.attempts.tolist(), one.steps.tolist(), one.values, strict=True)
    ]
    assert len({value for _, _, value in kept}) == len(kept)
    lost = set(range(len(steps))) - {int(value) for _, _, value in kept}
    assert all(steps[row] is not None for row in lost)
    if all(step is None for step in steps):
        assert not lost
    for run in log.runs:
        for one in run.series.values():
            assert (np.diff(one.clock) > 0).all()
            for attempt in np.unique(one.attempts):
                assert (np.diff(one.steps[one.attempts == attempt]) >= 0).all()


def lines_run(function, *args):
    """How many lines of the two modules run: what a loop over rows would show."""
    files = {log_runs.__file__, log_steps.__file__}
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        function(*args)
    finally:
        sys.settrace(None)
    return count


def tables(num_rows):
    noise = np.random.default_rng(0)
    steps = np.arange(num_rows)
    return {
        "rising": steps,
        "restarted": np.concatenate([steps[: num_rows // 2] + 9, steps[: num_rows // 2] + 40]),
        "two processes": np.maximum(steps // 2 + steps % 2 * 2, 0),
        "random": noise.integers(0, num_rows, num_rows),
        "up and down": np.where(steps % 2 == 0, steps + 7, 7),
    }


@pytest.mark.parametrize("kind", tables(4))
def test_no_loop_over_rows(kind):
    def split(num_rows):
        steps = tables(num_rows)[kind].astype(np.int64)
        rows = np.arange(len(steps), dtype=np.int64)
        column = log_runs.Column(signal="loss", label="loss", rows=rows, values=rows * 1.0)
        return log_runs.Table(
            steps=steps,
            lines=rows,
            columns=[column],
            events=[],
            resumed_rows=[],
            new_run_rows=[],
            total_steps=None,
        )

    small, large = split(200_000), split(800_000)
    few = lines_run(log_runs.split_runs, small, lambda sentence: None)
    many = lines_run(log_runs.split_runs, large, lambda sentence: None)
    assert many < 1.5 * few + 200


def test_a_second_run_may_count_from_one_where_the_first_counted_from_zero():
    assert [run.number for run in read([0, 1, 2, 3, 1, 2, 3, 4]).runs] == [1, 2]
    assert [run.number for run in read([0, 10, 20, 30, 10, 20, 30, 40]).runs] == [1]


def test_rows_without_steps_before_a_second_run_take_the_step_at_which_it_begins():
    builder = LogBuilder()
    for step in (100, 200):
        builder.row(step, [("loss", 2.0), ("loss_scale", 64.0)])
    builder.new_run()
    builder.row(None, [("loss_scale", 32.0)])
    for step in (100, 200):
        builder.row(step, [("loss", 2.0), ("loss_scale", 16.0)])
    two = builder.finish(path="x.log", format="test", title="a test").runs[1]
    assert two.series["loss_scale"].steps.tolist() == [100, 100, 200]
    assert two.series["loss_scale"].values.tolist() == [32.0, 16.0, 16.0]
