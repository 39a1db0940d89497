"""The page of a diagnosis: one file, nothing loaded, nothing of a log let loose."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from foreshock.core.errors import ForeshockError
from foreshock.inspection.finding import RunClass
from foreshock.report.compare import compare
from foreshock.report.diagnosis_html import render_diagnosis, tone, write_diagnosis
from tests.report.inspections import (
    NAN,
    diagnosis,
    finding,
    healthy,
    inspection,
    outlier,
    run_of,
    series,
    spike,
    spiked_run,
)
from tests.report.pages import EVIL, Page, assert_loads_nothing


def test_the_page_stands_alone_and_tells_everything(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out.html"
    write_diagnosis([inspection(notes=("two lines were cut",), facts={"precision": "bf16"})], out)
    page = Page(out.read_text("utf-8"))
    assert_loads_nothing(page)
    flat = " ".join(page.text.split())
    for told in (
        "One loss spike at step 200 that healed by itself.",
        "recovering spike",
        "Skip the batches of steps 190 to 200.",
        "the loss is logged every step",
        "the loss jumped to 7.09",
        "10 steps before the loss",
        "14 one-step outliers without after-effect",
        "the norm rose 54-fold",
        "lr too high",
        "What would settle it: the same batch again.",
        "two lines were cut",
        "precision",
        "Gradient norm",
        "Learning rate",
        "first alarm (live)",
        "onset (from both sides)",
    ):
        assert told in flat, told


def test_hostile_strings_are_only_text() -> None:
    run = run_of(series("loss", spiked_run().series["loss"].values), series(EVIL, np.ones(400)))
    episode = spike(statement=EVIL, first_mover=EVIL)
    moved = dataclasses.replace(episode.movements[0], signal=EVIL)
    episode = dataclasses.replace(episode, movements=(moved, *episode.movements[1:]))
    one = finding(
        run,
        verdict=EVIL,
        episodes=(episode, outlier(9, signal=EVIL)),
        warnings=(EVIL,),
        advice=(EVIL,),
        diagnosis=diagnosis(EVIL, EVIL),
    )
    made = inspection(one, one, path=EVIL, notes=(EVIL,), facts={EVIL: EVIL})
    made = dataclasses.replace(made, title=EVIL)
    text = render_diagnosis([made, made], compare([made, made]), [(EVIL, EVIL)])
    text.encode("utf-8")
    page = Page(text)
    assert_loads_nothing(page)
    assert page.text.count("<script>alert('x')</script>") >= 20
    assert "alert('x')" not in "".join(re.findall(r"<script[^>]*>(.*?)</script>", text, re.S))


def test_control_characters_do_not_reach_the_page() -> None:
    text = render_diagnosis([inspection(finding(verdict="red \x1b[31m ink \x00"))])
    assert "red \ufffd[31m ink \ufffd" in text
    assert "\x00" not in text


def test_a_million_values_stay_a_small_file_and_keep_the_spike() -> None:
    values = np.linspace(8, 3, 1_000_000) + np.random.default_rng(0).normal(0, 0.1, 1_000_000)
    values[654_321] = 123.456
    run = run_of(*(series(name, values) for name in ("loss", "grad_norm", "lr", "loss_scale")))
    at = 654_322
    text = render_diagnosis([inspection(finding(run, episodes=(spike(at),)))])
    assert len(text) < 3_000_000
    assert "1,000,000 steps thinned, extremes kept" in text


def test_several_logs_have_a_table_the_worst_first_and_sections() -> None:
    logs = [
        inspection(healthy(), path="runs/a/train.log"),
        inspection(finding(run_class=RunClass.NAN), path="runs/b/train.log"),
    ]
    text = render_diagnosis(logs, errors=[("runs/c", "it is empty")])
    page = Page(text)
    assert "2 logs, 1 with trouble; 1 could not be read" in page.text
    assert "it is empty" in page.text
    assert page.text.index("b/train.log") < page.text.index("a/train.log")
    links = [at["href"] for tag, at in page.tags if tag == "a"]
    places = {at["id"] for tag, at in page.tags if tag == "section"}
    assert links
    assert {f"#{place}" for place in places} == set(links)


def test_runs_side_by_side() -> None:
    logs = [inspection(finding(), path=f"runs/{seed}/log") for seed in range(4)]
    page = Page(render_diagnosis(logs, compare(logs)))
    assert "4 runs side by side" in page.text
    assert "the data order, not the optimiser" in page.text
    assert "Loss of the runs" in page.text
    assert "Steps that several share" in page.text


@pytest.mark.parametrize(
    "values", [[], [NAN], [NAN, NAN, NAN], [3.0], [0.0, -1.0, np.inf, -np.inf, 1e300]]
)
def test_runs_with_almost_nothing_are_shown(values: list[float]) -> None:
    found = [series("loss", values), series("grad_norm", values)] if values else []
    one = finding(run_of(*found), run_class=RunClass.NOT_JUDGEABLE, diagnosis=None)
    assert_loads_nothing(Page(render_diagnosis([inspection(one)])))


def test_of_many_logs_some_are_drawn_and_all_are_told() -> None:
    run = run_of(series("loss", np.arange(20_000.0)))
    one = finding(run, episodes=(spike(9_000),), diagnosis=None)
    text = render_diagnosis([inspection(one, path=f"runs/{place}/log") for place in range(26)])
    page = Page(text)
    assert len(text) < 4_000_000
    assert "2 runs more than can be drawn" in page.text
    assert page.text.count("as logged") == 24
    assert "25/log" in page.text


def test_every_class_has_a_tone() -> None:
    tones = {run_class: tone(run_class) for run_class in RunClass}
    assert tones[RunClass.NAN] == tones[RunClass.DIVERGENCE] == "severe"
    assert tones[RunClass.RECOVERING_SPIKE] == "mild"
    assert tones[RunClass.HEALTHY] == tones[RunClass.BENIGN_OUTLIERS] == "calm"
    assert tones[RunClass.NOT_JUDGEABLE] == "unknown"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ForeshockError, match="--html"):
        write_diagnosis([inspection()], tmp_path / "file" / "out.html")
