"""What a reader gives to the builder, and what becomes of it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.core import log_builder
from foreshock.core.log import EventKind, LoggedRun
from foreshock.core.log_builder import MAX_COLUMNS, MAX_STEP, LogBuilder, LogFull

NAN = float("nan")


def finish(log):
    return log.finish(path="x", format="megatron", title="Megatron-LM")


def only_run(log) -> LoggedRun:
    (run,) = finish(log).runs
    return run


def test_rows_become_series_with_canonical_names():
    log = LogBuilder()
    for line, step in enumerate((1, 2, 3), 10):
        log.row(step, [("lm loss", 3.0 - step), ("My Thing", 1.0 * step)], line=line)
    log.total_steps = 100
    log.num_lines = 12
    log.facts["torch"] = "2.9"
    read = finish(log)
    assert (read.path, read.format, read.title, read.num_lines) == (
        "x",
        "megatron",
        "Megatron-LM",
        12,
    )
    assert (read.facts, read.notes) == ({"torch": "2.9"}, ())
    run = read.runs[0]
    assert (run.number, run.has_steps, run.total_steps, run.restarts) == (1, True, 100, ())
    assert set(run.series) == {"loss", "my_thing"}
    loss = run.series["loss"]
    assert (loss.signal, loss.label) == ("loss", "lm loss")
    assert loss.steps.tolist() == loss.clock.tolist() == [1, 2, 3]
    assert loss.values.tolist() == [2.0, 1.0, 0.0]
    assert loss.lines.tolist() == [10, 11, 12]
    assert loss.attempts.tolist() == [0, 0, 0]
    assert run.num_values == 6


def test_an_empty_log_has_no_run():
    assert finish(LogBuilder()).runs == ()


def test_words_alone_make_a_run_without_series():
    log = LogBuilder()
    log.event(EventKind.STOPPED, line=3, text="CUDA\x1b[31m  error\n" + "x" * 1_000)
    run = only_run(log)
    assert (run.series, run.has_steps) == ({}, False)
    (event,) = run.events
    assert (event.kind, event.step, event.line) == (EventKind.STOPPED, None, 3)
    assert event.text.startswith("CUDA [31m error x")
    assert len(event.text) <= 200


def test_events_stand_at_the_step_before_them_or_after_at_the_start():
    log = LogBuilder()
    log.event(EventKind.OVERFLOW, line=1)
    log.row(10, [("loss", 1.0)], line=2)
    log.event(EventKind.OVERFLOW, line=3, values=[("loss_scale", 512.0)])
    log.row(20, [("loss", 2.0)], line=4)
    log.event(EventKind.STOPPED, line=5)
    run = only_run(log)
    assert [event.step for event in run.events] == [10, 10, 20]
    assert run.series["loss_scale"].steps.tolist() == [10]


def test_too_many_events_are_counted(monkeypatch):
    monkeypatch.setattr(log_builder, "_MAX_EVENTS", 3)
    log = LogBuilder()
    log.row(1, [("loss", 1.0)])
    for _ in range(5):
        log.event(EventKind.OVERFLOW)
    read = finish(log)
    assert len(read.runs[0].events) == 3
    assert read.notes == ("2 more messages were left out",)


def test_the_first_rank_speaks_and_others_only_of_nan():
    log = LogBuilder()
    for step in (1, 2, 3):
        log.row(step, [("loss", 1.0), ("lr", 0.5)], rank=4)
        log.row(step, [("loss", NAN if step == 2 else 9.0), ("lr", 9.0)], rank=0)
    log.row(4, [("loss", 9.0)], rank=0)
    read = finish(log)
    loss = read.runs[0].series["loss"]
    assert loss.steps.tolist() == [1, 2, 3]
    np.testing.assert_equal(loss.values, [1.0, NAN, 1.0])
    assert read.runs[0].series["lr"].values.tolist() == [0.5] * 3
    assert sum("several ranks print" in note for note in read.notes) == 1


def test_of_several_labels_of_a_signal_the_preferred_one_is_taken():
    log = LogBuilder()
    for step in (1, 2):
        log.row(step, [("total_loss", 2.0), ("loss", 1.0), ("Total-Loss", 3.0)])
    series = only_run(log).series
    assert (series["loss"].label, series["total_loss"].label) == ("loss", "total_loss")
    assert series["total_loss_2"].label == "Total-Loss"


def test_a_preferred_label_that_is_rare_does_not_hide_the_one_that_is_logged():
    log = LogBuilder()
    for step in range(1, 50):
        log.row(step, [("total_loss", 2.0)])
    log.row(50, [("loss", 1.0)])
    series = only_run(log).series
    assert len(series["loss"]) == 49
    assert series["loss"].label == "total_loss"


def test_what_the_user_names_goes_before_everything():
    log = LogBuilder(labels={"loss": "objective"})
    log.row(1, [("loss", 1.0), ("objective", 2.0)])
    log.row(2, [("loss", 1.0)])
    series = only_run(log).series
    assert series["loss"].values.tolist() == [2.0]
    assert series["other_loss"].label == "loss"


def test_steps_that_are_none():
    log = LogBuilder()
    for step in (-1, None, MAX_STEP, 1 << 70, 5):
        log.row(step, [("loss", 1.0)])
    assert only_run(log).series["loss"].steps.tolist() == [5, 5, 5, 5, 5]
    assert only_run(log).series["loss"].clock.tolist() == [5, 6, 7, 8, 9]


def test_whole_numbers_that_no_double_holds_are_infinite():
    log = LogBuilder()
    log.row(1, [("loss", 10**400), ("lr", -(10**400)), ("grad_norm", 3)])
    series = only_run(log).series
    assert [series[name].values[0] for name in ("loss", "lr", "grad_norm")] == [
        math.inf,
        -math.inf,
        3.0,
    ]


def test_rows_are_bounded():
    log = LogBuilder(max_rows=2)
    log.row(1, [("loss", 1.0)])
    log.row(2, [("loss", 1.0)])
    with pytest.raises(LogFull):
        log.row(3, [("loss", 1.0)])
    with pytest.raises(LogFull):
        log.event(EventKind.OVERFLOW, values=[("loss_scale", 1.0)])
    assert len(only_run(log).series["loss"]) == 2
    assert "only the first 2 rows were read" in finish(log).notes


def test_columns_are_bounded_but_there_is_room_for_known_signals():
    log = LogBuilder()
    log.row(1, [(f"grad of layer {n}", 1.0) for n in range(MAX_COLUMNS + 50)])
    log.row(2, [("loss", 1.0)])
    log.row(3, [(f"train/{'x' * n} loss", 1.0) for n in range(1, 3 * MAX_COLUMNS)])
    read = finish(log)
    assert len(read.runs[0].series) == MAX_COLUMNS + 1
    assert "loss" in read.runs[0].series
    assert read.notes == (f"only the first {MAX_COLUMNS} columns were read",)


def test_notes_are_one_line_once_and_bounded():
    log = LogBuilder()
    for _ in range(3):
        log.note("a\nb\x1b[31m" + "c" * 1_000)
    for number in range(1_000):
        log.note(f"n{number}")
    notes = finish(log).notes
    assert notes[0].startswith("a b [31mcc")
    assert len(notes) <= 40
    assert all(len(note) <= 400 for note in notes)


def test_one_label_twice_in_a_row_is_one_value():
    log = LogBuilder()
    log.row(1, [("loss", 1.0), ("loss", 2.0)])
    log.row(2, [("lr", 1.0)])
    log.row(3, [("loss", 3.0)])
    loss = only_run(log).series["loss"]
    assert (loss.steps.tolist(), loss.values.tolist()) == ([1, 3], [1.0, 3.0])


finite_or_not = st.one_of(st.floats(), st.integers(-(10**320), 10**320))
rows = st.tuples(
    st.just("row"),
    st.one_of(st.none(), st.integers(-3, 40), st.integers()),
    st.lists(st.tuples(st.sampled_from(["loss", "lr", "epoch", "x", "val/loss"]), finite_or_not)),
    st.one_of(st.none(), st.integers(0, 2)),
)
words = st.tuples(st.just("event"), st.sampled_from(EventKind), st.booleans())
actions = st.lists(st.one_of(rows, rows, rows, words, st.just(("new_run",))), max_size=60)


@given(actions)
@settings(max_examples=400, deadline=None)
def test_whatever_a_reader_says_makes_a_log(actions):
    log = LogBuilder()
    given_values: list[float] = []
    for action in actions:
        if action[0] == "row":
            log.row(action[1], action[2], rank=action[3])
            given_values += [float(np.float64(v)) for _, v in action[2] if abs(v) < 1e300]
        elif action[0] == "event":
            log.event(action[1], values=[("loss_scale", 2.0)] if action[2] else ())
        else:
            log.new_run()
    num_events = 0
    for run in finish(log).runs:
        num_events += len(run.events)
        for signal, one in run.series.items():
            assert one.signal == signal
            shapes = {
                array.shape for array in (one.steps, one.values, one.clock, one.attempts, one.lines)
            }
            assert shapes == {(len(one),)}
            assert len(one) > 0
            assert (np.diff(one.clock) > 0).all()
            assert (one.clock >= one.steps).all()
            assert (np.diff(one.attempts) >= 0).all()
            finite = one.values[np.isfinite(one.values)]
            assert set(finite[np.abs(finite) < 1e300]) <= {*given_values, 2.0}
    assert num_events == sum(action[0] == "event" for action in actions)


@pytest.mark.parametrize(
    ("labels", "loss"),
    [
        (["occupancy_loss", "acc"], "occupancy_loss"),
        (["agent/train_loss", "agent/mask_loss"], "agent/train_loss"),
        (["gen_loss", "disc_loss"], None),
        (["entropy_loss"], None),
        (["my val loss"], None),
        (["loss scale"], None),
        (["part_loss", "loss"], "loss"),
    ],
)
def test_the_only_loss_is_the_loss(labels: list[str], loss: str | None) -> None:
    log = LogBuilder()
    for step in range(3):
        log.row(step, [(label, 2.5) for label in labels])
    series = log.finish(path="x", format="x", title="x").runs[0].series
    assert (series["loss"].label if "loss" in series else None) == loss
