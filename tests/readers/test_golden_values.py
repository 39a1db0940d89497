"""Megatron-LM's golden values: the string "nan" is no NaN."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from foreshock.core.errors import LogError
from foreshock.core.log import Log
from foreshock.logs import ranking, read_log
from foreshock.source import FileSource


def metric(values: Any, *, start: int = 1, end: int = 30, interval: int = 5) -> dict[str, Any]:
    return {"start_step": start, "end_step": end, "step_interval": interval, "values": values}


def read(tmp_path: Path, found: object) -> Log:
    (tmp_path / "golden_values.json").write_text(json.dumps(found))
    return read_log(tmp_path / "golden_values.json")


def test_values_by_step(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        {
            "num-zeros": metric({"1": 4000.0, "5": 4100.0, "10": 4200.0}),
            "iteration-time": metric({"1": 9.5, "5": 0.5, "10": 0.5}),
            "lm loss": metric({"1": 11.5, "5": 11.25, "10": 10.5}),
        },
    )
    assert log.format == "golden_values"
    (run,) = log.runs
    assert set(run.series) == {"loss", "num_zeros"}
    assert run.series["loss"].steps.tolist() == [1, 5, 10]
    assert run.series["loss"].values.tolist() == [11.5, 11.25, 10.5]
    assert run.total_steps == 30


def test_the_string_nan_is_a_step_that_was_not_reached(tmp_path: Path) -> None:
    values = {"1": 11.5, "5": "nan", "10": 10.5, "15": "nan", "20": "nan"}
    log = read(tmp_path, {"lm loss": metric(values)})
    assert log.runs[0].series["loss"].steps.tolist() == [1, 10]
    assert any("nan" in note for note in log.notes)


def test_a_bare_nan_is_one(tmp_path: Path) -> None:
    values = {"1": 11.5, "5": math.nan, "10": 10.5}
    found = read(tmp_path, {"lm loss": metric(values)}).runs[0].series["loss"]
    assert found.steps.tolist() == [1, 5, 10]
    assert math.isnan(found.values[1])


def test_the_older_form_with_lists(tmp_path: Path) -> None:
    log = read(tmp_path, {"lm loss": metric([11.5, 11.0, 10.5], start=0)})
    assert log.runs[0].series["loss"].steps.tolist() == [0, 5, 10]
    assert log.runs[0].series["loss"].values.tolist() == [11.5, 11.0, 10.5]


def test_hostile_values_are_skipped(tmp_path: Path) -> None:
    values = {"x": 1.0, "-5": 1.0, "9" * 60: 1.0, "5": 10**400, "10": [], "15": True, "20": 9.5}
    found = {"lm loss": metric(values), "odd": 5, "empty": {}, "none": metric(None)}
    log = read(tmp_path, found)
    assert log.runs[0].series["loss"].steps.tolist() == [20]


def test_a_cut_file_is_one_error(tmp_path: Path) -> None:
    text = json.dumps({"lm loss": metric({"1": 11.5, "5": 11.25})})
    (tmp_path / "x.json").write_text(text[:-12])
    with pytest.raises(LogError, match="not whole JSON"):
        read_log(tmp_path / "x.json")


def test_what_is_recognised(tmp_path: Path) -> None:
    def formats(text: str) -> list[str]:
        (tmp_path / "x.json").write_text(text)
        return [reader.name for _, reader in ranking(FileSource(tmp_path / "x.json").sample())]

    text = json.dumps({"lm loss": metric({"1": 11.5})})
    assert formats(text)[0] == "golden_values"
    assert formats(json.dumps(json.loads(text), indent=4))[0] == "golden_values"
    assert "golden_values" not in formats('{"loss": {"1": 2.0, "2": 1.0}}')
