"""Public reports as cases: what is read of them, what is not, and how answers are scored."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases import __main__ as answers
from benchmarks.cases.__main__ import figures, main
from benchmarks.cases.labels import BY_CLASS, BY_KIND, label_of
from benchmarks.cases.reported import FEW_READINGS, longest_run, number, reported, steps_of
from foreshock.catalog import members

CONCLUSIONS = (
    "symptom",
    "cause",
    "cause_class",
    "fix",
    "notes",
    "ideal_tool_message",
    "signals",
    "preflight_check",
    "established_by",
)


def row(trace: list[dict[str, Any]], config: Any = None, **changed: Any) -> Any:
    usual = {"id": "x", "kind": "failure", "cause_class": "lr/warmup"}
    return {**usual, "trace": trace, "config": config or {}, **changed}


def losses(*values: Any) -> list[dict[str, Any]]:
    return [{"step": n, "loss": value} for n, value in enumerate(values, 1)]


CALM = [2.0, 2.1, 1.9, 2.05, 1.95, 2.0, 2.02, 1.98]


def test_every_right_cause_can_be_named() -> None:
    for label in (*BY_KIND.values(), *BY_CLASS.values()):
        assert label.causes <= set(members("causes"))
        assert label.reason


def test_the_kind_of_a_report_goes_before_its_class() -> None:
    assert label_of(row([], kind="benign-alarm")).causes == {"benign"}
    assert label_of(row([])).causes == BY_CLASS["lr/warmup"].causes


def test_conclusions_are_not_read() -> None:
    class Watched(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            assert key not in CONCLUSIONS
            return super().__getitem__(key)

    trace = [{"step": 1, "loss": 2.0, "note": "after the fix"}, {"step": 2, "loss": 9.0}]
    one = reported(Watched(row(trace, {"resume": True})))
    assert one.told == ("resume",)
    assert "fix" not in repr(one.case)


def test_numbers_also_as_texts_and_nothing_else() -> None:
    assert [number(v) for v in (1, 2.5, "1e3", True, None, [1])] == [
        1.0,
        2.5,
        None,
        None,
        None,
        None,
    ]
    assert math.isnan(number("nan") or 0.0)
    assert number("Inf") == math.inf


def test_a_trace_is_the_longest_of_the_runs_it_shows() -> None:
    trace = [
        {"run": "a", "step": 1, "loss": 1.0},
        {"run": "b", "step": 1, "loss": 2.0},
        {"run": "b", "step": 2, "loss": 2.0},
        {"note": "no number"},
        {"step": 1, "loss": 3.0},
    ]
    assert [one["loss"] for one in longest_run(trace)] == [2.0, 2.0]
    assert longest_run([]) == []
    assert longest_run(losses(1.0, 2.0) + losses(3.0, 4.0)) == losses(1.0, 2.0)


def test_steps_are_those_of_the_trace_if_they_rise() -> None:
    assert steps_of([{"step": 5}, {"step": 9}]) == [5, 9]
    assert steps_of([{"iter": 5}, {"iter": 5}]) == [1, 2]
    assert steps_of([{"step": "before"}, {"step": 9}]) == [1, 2]


def test_series_that_are_not_shown_are_no_zeros() -> None:
    trace = [{"step": 1, "loss": 2.0}, {"step": 2, "grad_norm": 0.5}]
    line = reported(row(trace)).case.timeline
    assert line.series == ("loss/global", "grad_norm/global")
    assert line.steps_of("loss/global").tolist() == [1]
    assert line.steps_of("grad_norm/global").tolist() == [2]


def test_a_nan_alarms_by_itself() -> None:
    one = reported(row(losses(*CALM, "nan")))
    assert one.alarms_by == "detectors"
    assert one.case.alarms[-1].kind == "nonfinite"


def test_where_no_rule_alarms_the_reading_that_stands_out_is_taken() -> None:
    one = reported(row(losses(2.0, 2.1, 9.0, 2.0)))
    assert one.alarms_by == "report"
    assert one.case.onset_step == 3
    assert reported(row(losses(2.0, 2.1, 2.0))).case.onset_step == 3, "else the last"
    assert reported(row([])).case.onset_step == 1


def test_a_thin_report_has_few_readings_and_no_setting_that_tells() -> None:
    few, enough = losses(*CALM[: FEW_READINGS - 1]), losses(*CALM)
    assert reported(row(few)).is_thin
    assert not reported(row(enough)).is_thin
    assert reported(row(few, {"lr": 1e-3, "resume": False})).is_thin
    assert not reported(row(few, {"resume": True})).is_thin
    assert not reported(row(few, {"precision": 16})).is_thin


@pytest.mark.parametrize(
    ("written", "read"),
    [("fp16/half params", "fp16"), (16, "fp16"), ("bf16 params", "bf16"), ("fp32", "fp32")],
)
def test_precisions_as_people_write_them(written: Any, read: str) -> None:
    assert reported(row([], {"precision": written})).case.facts["precision"] == read


def test_a_restart_comes_just_before_the_trouble() -> None:
    one = reported(row(losses(*CALM, 9.0), {"resume": True}))
    assert one.case.starts == (0, one.case.onset_step - 1)
    assert reported(row(losses(*CALM, 9.0))).case.starts == (0,)


def test_figures_keep_no_text_of_the_reports(tmp_path: Path, capsys: Any) -> None:
    secret = dict.fromkeys(CONCLUSIONS, "a sentence that must not be kept")
    rows = [
        row(losses(2.0), {"precision": "secret fp16 words"}, **{**secret, "cause_class": "data"}),
        row(losses(*CALM, "nan"), **{**secret, "cause_class": "numeric-fp16"}),
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in rows))
    main(["--cases", str(tmp_path), "--json", str(tmp_path / "out.json")])
    told = capsys.readouterr().out
    assert json.loads(told)["cases"] == 2
    assert "sentence" not in told
    assert "secret" not in told


def test_unknown_is_right_for_a_thin_report_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "causes", lambda: (members("causes")["unknown"](),))
    thin, enough = row(losses(2.0), id="a"), row(losses(*CALM), id="b")
    found = figures([thin, enough, row(losses(*CALM), kind="undetermined", id="c")])
    assert found["answered_rightly"] == pytest.approx(2 / 3, abs=1e-4)
    assert found["thin"] == {
        "cases": 1,
        "unknown": 1,
        "says_what_next": 1,
        "right_cause_first": 0,
        "another_cause_first": 0,
        "wrongly_confident": 0,
    }
    assert found["with_readings_or_settings"]["by_class"]["lr/warmup"]["top1"] == 0.0
    assert found["by_case"]["b"]["right"] is False
