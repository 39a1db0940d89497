"""Any log at all is inspected without complaint, and what is found hangs together."""

import json
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foreshock.core.log import EventKind, Log, LoggedRun
from foreshock.core.log_builder import LogBuilder
from foreshock.inspection.finding import (
    Episode,
    EpisodeKind,
    Inspection,
    Movement,
    RunClass,
    RunFinding,
)
from foreshock.inspection.inspect import inspect_log
from tests.inspection.runs import inspected, level, log_of

NASTY = (
    0.0, -1.0, 1.0, 2.0, 1e308, -1e308, math.nan, math.inf, -math.inf, 1e-320, 1e-8, 5.0, 65536.0
)  # fmt: skip
SIGNALS = (
    "loss", "grad_norm", "loss_scale", "lr", "eval_loss", "eval_bleu", "eval_f1", "eval_acc",
    "epoch", "rewards/mean", "param_norm", "loss_G", "update_ratio",
)  # fmt: skip
KINDS = ("nasty", "calm", "outliers", "holes", "still", "wide", "huge", "zero", "nan")
NONSENSE = re.compile(
    r"from nan\b|None|\b1 (?:readings|steps|outliers|gradient norms)\b"
    r"| -\d+ (?:step|reading|outlier)|and -\d|step -"
)
CLASS_OF = {
    EpisodeKind.NON_RECOVERING_SPIKE: RunClass.SHIFT,
    EpisodeKind.EVAL_ONLY: RunClass.EVAL_ONLY_NAN,
}
CAUSED_NAN = (RunClass.LOSS_SCALE_COLLAPSE, RunClass.GRAD_NORM_EXPLOSION)


def values_of(kind: str, num: int, rng: np.random.Generator) -> np.ndarray:
    noise, chance = rng.normal(size=num), rng.random(num)
    match kind:
        case "nasty":
            return rng.choice(NASTY, num)
        case "outliers":
            return 2 + 0.05 * noise + 3 * (chance < 0.1)
        case "holes":
            return np.where(chance < 0.3, math.nan, 2 + 0.1 * noise)
        case "still":
            return np.full(num, 1.5)
        case "wide":
            return np.exp(3 * noise)
        case "huge":
            return 1e308 * chance
        case "zero" | "nan":
            return np.full(num, 0.0 if kind == "zero" else math.nan)
        case _:
            return 2 + 0.05 * noise


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Rows of nasty and of sensible values, on steps that repeat, go back or are not named."""
    num = draw(st.sampled_from([0, 1, 2, 3, 5, 8, 12, 20, 45, 61, 70, 120, 300]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cut = draw(st.integers(0, num))
    columns: dict[str, np.ndarray] = {}
    there: dict[str, np.ndarray] = {}
    for name in draw(st.sets(st.sampled_from(SIGNALS), max_size=7)):
        parts = [draw(st.sampled_from(KINDS)) for _ in range(2)]
        columns[name] = np.concatenate(
            [values_of(kind, size, rng) for kind, size in zip(parts, (cut, num - cut), strict=True)]
        )
        there[name] = rng.random(num) < draw(st.sampled_from([1, 1, 0.5, 0.1]))
    step, interval = draw(st.sampled_from([0, 1, 100, 50_000])), draw(st.sampled_from([1, 10, 100]))
    names_steps, repeats = draw(st.booleans()), draw(st.sampled_from([0, 0, 0.2]))
    back, words, anew = (draw(st.sampled_from([0, 0, each])) for each in (0.1, 0.03, 0.01))
    builder = LogBuilder()
    for row in range(num):
        if rng.random() < words:
            kind, signal = rng.choice(list(EventKind)), rng.choice(["", "loss", "grad_norm"])
            builder.event(EventKind(kind), line=row + 1, text="skipping", signal=str(signal))
        if rng.random() < anew:
            builder.new_run()
            step = 1
        if rng.random() < back:
            step = max(0, step - interval * int(rng.integers(12)))
        pairs = [(name, float(each[row])) for name, each in columns.items() if there[name][row]]
        named = names_steps and rng.random() >= repeats
        builder.row(step if named else None, pairs, line=row + 1)
        step += interval
    if rng.random() < 5 * words:
        builder.event(EventKind.NONFINITE, line=num + 1, text="z", signal="loss")
    return builder.finish(path="x", format="x", title="x")


@contextmanager
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@settings(deadline=None, max_examples=120)
@given(logs())
@example(Log(path="x", format="x", title="x", runs=()))
def test_any_log_is_inspected_and_the_finding_hangs_together(log: Log) -> None:
    with no_warnings():
        found = inspect_log(log)
    hangs_together(found)


def hangs_together(found: Inspection) -> None:
    fields = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert fields["class"] == found.run_class == found.worst.run_class
    assert found.exit_code == int(found.run_class.is_trouble)
    for finding in found.findings:
        check_class(finding)
        check_nan(finding)
        for text in (finding.verdict, *finding.warnings, *finding.advice):
            assert text
            assert not NONSENSE.search(text), text
        for episode in finding.episodes:
            check_episode(episode, finding)
            assert episode.statement
            assert not NONSENSE.search(episode.statement), episode.statement


def check_class(finding: RunFinding) -> None:
    kinds = [one.kind for one in finding.episodes if one.matters]
    classes = {CLASS_OF.get(kind, RunClass(kind)) if kind not in CLASS_OF else CLASS_OF[kind]
               for kind in kinds}  # fmt: skip
    shown = len(finding.episodes) - len(kinds)
    assert shown == min(20, finding.num_outliers)
    if classes:
        worst = min(classes, key=lambda one: one.severity)
        caused = worst is RunClass.NAN and finding.run_class in CAUSED_NAN
        assert finding.run_class is worst or (caused and finding.run_class in classes)
        assert "out of range in" not in finding.verdict
        assert "left no trace" not in finding.verdict
    elif finding.num_outliers:
        assert finding.run_class is RunClass.BENIGN_OUTLIERS
    else:
        assert finding.run_class in (RunClass.HEALTHY, RunClass.NOT_JUDGEABLE)


def check_nan(finding: RunFinding) -> None:
    loss = finding.run.series.get("loss")
    if loss is None or np.isfinite(loss.values).all():
        return
    assert finding.nan_from_step is not None
    if not any("0.0" in one or "mean of its" in one for one in finding.warnings):
        assert finding.nan_from_step == loss.steps[np.argmin(np.isfinite(loss.values))]


def steps_of(run: LoggedRun) -> set[int]:
    said = {event.step for event in run.events if event.step is not None}
    logged = {int(step) for one in run.series.values() for step in one.steps}
    return said | logged or {0}


def check_span(one: Episode | Movement, steps: set[int]) -> None:
    assert one.onset_step <= one.peak_step
    assert one.end_step is None or one.peak_step <= one.end_step
    shown = {one.onset_step, one.peak_step, one.end_step, one.alarm_step} - {None}
    assert shown <= steps


def check_episode(episode: Episode, finding: RunFinding) -> None:
    steps = steps_of(finding.run)
    moved = {one.signal: one for one in episode.movements}
    assert len(moved) == len(episode.movements)
    assert episode.onset_step == moved[episode.first_mover].onset_step
    for one in (episode, *episode.movements):
        check_span(one, steps)
        assert one.onset_step >= episode.onset_step
    alarms = [one.alarm_step for one in episode.movements if one.alarm_step is not None]
    assert episode.alarm_step == min(alarms, default=None)
    for one in episode.movements:
        raised = {alarm.step for alarm in finding.alarms.get(one.signal, ())}
        assert one.alarm_step is None or one.alarm_step in raised
    causal = episode.causal_onset_step
    assert (episode.alarm_step is None) == (causal is None)
    assert causal is None or (causal in steps and causal <= (episode.alarm_step or 0))
    leads = (episode.lead_to_loss_move_steps, episode.lead_to_loss_peak_steps)
    if loss := moved.get("loss"):
        onset = episode.onset_step
        assert leads == (loss.onset_step - onset, loss.peak_step - onset)
    assert all(lead is None or lead >= 0 for lead in leads)
    assert episode.steps_lost is None or episode.steps_lost >= 0


def spikes(num: int, every: int, width: int = 1) -> np.ndarray:
    loss = level(num, 2.5)
    for at in range(100, num - 100, every):
        loss[at : at + width] += 2.0
    return loss


def test_every_outlier_is_counted_and_the_one_after_them_all_is_seen() -> None:
    loss = spikes(40_000, 16)
    loss[39_400:39_430] += 3.0
    found = inspected({"loss": loss}, first=50_000)
    assert found.run_class is RunClass.RECOVERING_SPIKE
    assert found.worst.num_outliers == pytest.approx((40_000 - 200) / 16, rel=0.01)


def test_an_outlier_of_both_signals_is_one_however_many_there_are() -> None:
    loss, norm = spikes(3000, 40), level(3000, 0.4)
    norm[100:2900:40] *= 30
    found = inspected({"loss": loss, "grad_norm": norm}, first=50_000)
    assert found.worst.num_outliers == 70


def test_the_worst_episode_is_listed_however_many_come_before() -> None:
    loss = spikes(60_000, 250, width=12)
    loss[-40:] = math.nan
    found = inspected({"loss": loss}, first=50_000)
    assert found.run_class is RunClass.NAN
    assert "NaN" in found.worst.verdict
    assert re.search(r"\(and 2\d\d more\)", found.worst.verdict)
    assert len(found.worst.episodes) <= 220
    assert any("episodes" in warning for warning in found.worst.warnings)


def test_an_attempt_that_was_undone_does_not_explain_a_later_nan() -> None:
    loss = level(200, 2.5)
    loss[150:] += 2.0
    later = level(200, 2.5, seed=4)
    later[190:] = math.nan
    steps = [*range(1, 201), *range(101, 301)]
    found = inspected({"loss": np.concatenate((loss, later))}, steps=steps)
    nan = next(one for one in found.worst.episodes if one.kind is EpisodeKind.NAN)
    assert nan.onset_step == nan.alarm_step == found.worst.nan_from_step == 291


def test_a_nan_that_a_restart_undid_never_came_back() -> None:
    loss = level(300, 2.5)
    loss[180:200] = math.nan
    found = inspected({"loss": loss}, steps=[*range(1, 201), *range(101, 201)])
    (nan,) = (one for one in found.worst.episodes if one.kind is EpisodeKind.NAN)
    assert (nan.onset_step, nan.end_step) == (181, None)
    loss = level(300, 2.5)
    loss[180:190] = math.nan
    (nan,) = inspected({"loss": loss}).worst.episodes
    assert (nan.onset_step, nan.end_step) == (181, 191)
    assert nan.movements[0].baseline == pytest.approx(2.5, rel=0.02)


def test_words_and_artefacts_raise_no_causal_alarm() -> None:
    said = {25: (EventKind.NONFINITE, "loss"), 20: (EventKind.NONFINITE, "grad_norm")}
    for episode in inspected({"loss": level(30, 2.5)}, events=said).worst.episodes:
        assert episode.alarm_step is None
    loss = level(200, 2.5)
    loss[195:] = 0.0  # a filtered NaN, as one sees when the rest is zero too
    found = inspected({"loss": loss})
    assert found.run_class is RunClass.NAN
    assert found.worst.episodes[0].alarm_step is None
    norm = level(200, 0.4)
    norm[195:] = math.nan
    (episode,) = inspected({"loss": loss, "grad_norm": norm}).worst.episodes
    assert episode.alarm_step == 196
    assert {one.signal: one.alarm_step for one in episode.movements} == {
        "loss": None,
        "grad_norm": 196,
    }


def test_words_without_steps_are_placed_by_their_line() -> None:
    builder = LogBuilder()
    for row in range(30):
        builder.row(None, [("loss", 2.5)], line=2 * row + 1)
        if row == 20:
            builder.event(EventKind.NONFINITE, line=2 * row + 2, signal="loss", text="nan")
    found = inspect_log(builder.finish(path="x", format="x", title="x"))
    assert found.worst.nan_from_step == 21


def test_a_dead_loss_has_a_movement_and_the_alarm_of_its_rule() -> None:
    loss = level(600, 2.5)
    loss[300:] = 0.7
    found = inspected({"loss": loss})
    plateau = next(one for one in found.worst.episodes if one.kind is EpisodeKind.PLATEAU)
    assert plateau.onset_step == plateau.movements[0].onset_step == 301
    assert plateau.alarm_step == 400
    assert plateau.movements[0].detectors == ("plateau",)


def test_norms_that_are_nan_survive_being_divided_by_the_loss_scale() -> None:
    scale = 2.0 ** (10 + np.abs(np.arange(120) // 8 % 6 - 3))
    norm = level(120, 0.4) * scale
    norm[100:] = math.nan
    signals = {"loss": level(120, 2.5), "grad_norm": norm, "loss_scale": scale}
    found = inspected(signals, first=50_000)
    assert any("times the loss scale" in one for one in found.worst.warnings)
    assert found.run_class is RunClass.NAN
    assert found.worst.nan_from_step == 50_100


def test_readings_that_share_a_step_are_no_epoch_means_that_became_nan() -> None:
    rng = np.random.default_rng(0)
    loss = np.concatenate(
        [np.cumsum(1 + 0.25 * rng.normal(size=60)) / np.arange(1, 61) for _ in range(10)]
    )
    builder = LogBuilder()
    for row, value in enumerate(loss.tolist()):
        step = row + 1 if row % 3 else None
        builder.row(step, [("loss", value), ("epoch", row // 60)], line=row + 1)
    with no_warnings():
        found = inspect_log(builder.finish(path="x", format="x", title="x"))
    assert found.run_class is not RunClass.NAN


def test_the_diagnosis_of_an_attempt_names_steps_of_the_log() -> None:
    loss, norm = level(200, 2.5), level(200, 0.4, seed=1)
    again, after = level(300, 2.5, seed=2), level(300, 0.4, seed=3)
    again[250:] += 4.0
    after[248:] *= 60
    steps = [*range(1, 201), *range(101, 401)]
    found = inspected(
        {"loss": np.concatenate((loss, again)), "grad_norm": np.concatenate((norm, after))},
        steps=steps,
    )
    assert found.run_class is RunClass.DIVERGENCE
    diagnosis = found.worst.diagnosis
    assert diagnosis is not None
    assert 340 <= diagnosis.to_json()["alarm_step"] <= 360


def test_a_long_log_of_restarts_takes_no_more_than_one_without() -> None:
    """What each attempt costs does not grow with the length of the run: 2,000 in seconds."""
    steps = np.concatenate([np.arange(1000 + 2 * k, 1012 + 2 * k) for k in range(2000)])
    found = inspect_log(log_of({"loss": level(len(steps), 2.5)}, steps=steps.tolist()))
    assert len(found.worst.run.restarts) == 1999
    assert not found.run_class.is_trouble
