"""A diagnosis in a terminal: what stands where, and that nothing of a log drives it."""

import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from foreshock.inspection.finding import EpisodeKind, Inspection, RunClass
from foreshock.report.diagnosis_text import print_inspection, print_overview
from tests.report.inspections import (
    NAN,
    finding,
    healthy,
    inspection,
    outlier,
    run_of,
    series,
    spike,
    spiked_run,
)

EVIL = "[bold]x[/bold] [/] :smile: [link=y]z \x1b[2J\x1b]0;t\x07 \u202e"


def _text(one: Inspection, width: int = 80, colour: bool = False, **rest: bool) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        legacy_windows=False,
    )
    print_inspection(one, console, **rest)
    return out.getvalue()


def _flat(text: str) -> str:
    return " ".join(text.split())


def test_one_screen_with_the_verdict_first() -> None:
    text = _text(inspection())
    lines = text.splitlines()
    assert lines[0] == "RECOVERING SPIKE  One loss spike at step 200 that healed by itself."
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    flat = _flat(text)
    for told in (
        "runs/a/train.log · Megatron-LM · steps 1–400",
        "grad_norm at step 190, 10 steps before the loss, 10 steps before its peak",
        "loss 7.09 at step 200 (was 3); grad_norm 27.3 at step 200 (was 0.5)",
        "at step 220; 19 steps lost; loss then 0.012 higher than its trend (0.4 sd)",
        "step 190, seen from both sides; live, the first alarm comes at step 192 and names 191 "
        "(causal)",
        "data batch 62% +2.1 the norm rose 54-fold -0.8 it rose slowly",
        "lr too high 35% no evidence for or against",
        "settled by the same batch again",
        "Do Skip the batches of steps 190 to 200. Clip at 1.0.",
        "Mind the loss is logged every step",
        "14 one-step outliers without after-effect (largest: grad_norm 12 at step 90, usually 0.5)",
    ):
        assert told in flat, told
    for untold in ("a lesser fact", "unknown", "at step 50"):
        assert untold not in flat


def test_the_chart_shows_the_loss_and_beneath_it_what_moved_first() -> None:
    lines = _text(inspection()).splitlines()
    loss, norm = (
        next(at for at, line in enumerate(lines) if line.startswith(name))
        for name in ("loss ", "grad_norm ")
    )
    assert 0 < loss < norm
    axis = lines[norm + 2]
    assert axis.strip().strip("─")[0] == "O"
    for sign in "OPE":
        assert sign in axis
    assert lines[loss][axis.index("P")] == "█"
    assert lines[loss + 1][axis.index("O")] == " "
    assert "onset 190" in lines[norm + 3]
    assert "peak 200" in lines[norm + 3]
    assert "end 220" in lines[norm + 3]
    assert lines[loss].endswith(" 7.09")
    assert lines[norm + 1].startswith("log scale")


def test_nan_has_a_mark_of_its_own() -> None:
    loss = np.full(60, 3.0)
    loss[40:] = NAN
    moved = dataclasses.replace(
        spike(41).movements[1], onset_step=41, end_step=None, peak_value=NAN, baseline=3.0
    )
    episode = spike(
        41, EpisodeKind.NAN, onset_step=41, end_step=None, first_mover="loss", movements=(moved,)
    )
    run = run_of(series("loss", loss))
    one = finding(run, run_class=RunClass.NAN, episodes=(episode,), nan_from_step=41)
    text = _text(inspection(one))
    line = next(line for line in text.splitlines() if line.startswith("loss "))
    assert line.count("×") >= 15
    assert "NaN, from step 41 on" in text
    assert "loss NaN at step 41" in _flat(text)
    assert "not by the end of the log" in _flat(text)


def test_three_episodes_the_worst_first_and_how_many_more() -> None:
    episodes = (
        spike(150),
        spike(200, EpisodeKind.DIVERGENCE, end_step=None),
        spike(250, after_effect_sds=3.0),
        spike(300),
        spike(350),
    )
    one = finding(run_class=RunClass.DIVERGENCE, episodes=episodes)
    text = _text(inspection(one))
    heads = [line for line in text.splitlines() if line.startswith(("Divergence", "Recovering"))]
    assert [head.split(":")[0] for head in heads] == [
        "Divergence, from step 190 on",
        "Recovering spike, steps 240 to 270",
        "Recovering spike, steps 140 to 170",
    ]
    assert "and 2 more episodes of less weight (-v shows all)" in text
    assert len(text.splitlines()) <= 60
    everything = _text(inspection(one), verbose=True)
    assert everything.count("Recovering spike, steps") == 4
    assert "a lesser fact for it" in everything


def test_a_healthy_run_is_one_sentence_and_one_chart() -> None:
    text = _text(inspection(healthy()))
    lines = text.rstrip().splitlines()
    assert lines[0] == "HEALTHY  Nothing out of range."
    assert len(lines) < 12
    assert "step 1 " in lines[-1]
    assert lines[-1].endswith("step 400")
    assert any(line.startswith("loss ") for line in lines)


def test_every_class_is_said_in_words_and_has_a_colour() -> None:
    for run_class in RunClass:
        one = inspection(finding(run_class=run_class))
        first = _text(one).splitlines()[0]
        assert first.split("  ")[0].isupper()
        assert "One loss spike" in first
        shown = _text(one, colour=True).splitlines()[0]
        colours = {"31": "red", "32": "green", "33": "yellow", "36": "cyan"}
        assert any(f"\x1b[1;{code}m" in shown for code in colours), run_class


def test_without_colour_there_are_no_codes() -> None:
    assert "\x1b" not in _text(inspection())


def test_nothing_of_a_log_is_markup_or_drives_the_terminal() -> None:
    evil_run = run_of(
        series("loss", spiked_run().series["loss"].values),
        series(EVIL, spiked_run().series["grad_norm"].values),
    )
    episode = spike(statement=EVIL, first_mover=EVIL)
    moved = dataclasses.replace(episode.movements[0], signal=EVIL)
    episode = dataclasses.replace(episode, movements=(moved, *episode.movements[1:]))
    one = finding(
        evil_run,
        verdict=f"verdict {EVIL}",
        episodes=(episode, outlier(5, signal=EVIL)),
        advice=(EVIL,),
        warnings=(EVIL,),
    )
    made = inspection(one, one, path=EVIL, notes=(EVIL,))
    made = dataclasses.replace(made, title=EVIL)
    text = _text(made, width=200, verbose=True, all_outliers=True)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert text.count("[bold]x[/bold] [/] :smile: [link=y]z") >= 8
    out = io.StringIO()
    print_overview([made, made], Console(file=out, width=120, color_system=None))
    assert "\x1b" not in out.getvalue()
    assert "[bold]x" in out.getvalue()


def test_all_outliers_are_listed_on_demand() -> None:
    text = _text(inspection(), all_outliers=True)
    assert "grad_norm 9 at step 50, usually 0.5" in text
    assert "and 12 more that were not kept" in text


def test_a_log_of_several_runs_shows_the_worst_and_a_line_for_the_others() -> None:
    other = healthy(spiked_run(100, 50, number=2), verdict="Fine.")
    text = _text(inspection(finding(), other, notes=tuple(f"note {i}" for i in range(9))))
    assert text.startswith("RECOVERING SPIKE")
    assert "run 1 of 2" in text
    assert "The file holds 1 more run:" in text
    assert "run 2, steps 1–100: healthy  Fine." in text
    assert "note: note 3" in text
    assert "note: and 5 more" in text


def test_the_overview_has_a_line_a_log_the_worst_first() -> None:
    long = "the loss is NaN from step 41 on, and so is every gradient norm after it " * 3
    worst = finding(run_class=RunClass.NAN, verdict=long)
    logs = [
        inspection(healthy(), path="runs/a/train.log"),
        inspection(finding(), path="runs/b/train.log"),
        inspection(worst, path="runs/c/" + "deep/" * 20 + "train.log"),
    ]
    out = io.StringIO()
    print_overview(logs, Console(file=out, width=80, color_system=None))
    lines = out.getvalue().rstrip().splitlines()
    assert [line.split("  ")[0] for line in lines[:3]] == ["NaN", "recovering spike", "healthy"]
    assert lines[0].endswith("deep/train.log")
    assert "…" in lines[0]
    assert lines[1].endswith("  b/train.log")
    assert all(len(line) <= 80 for line in lines)
    assert lines[3] == "3 logs, 2 with trouble. Details: -v, or one log alone."


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_any_width_holds(width: int) -> None:
    assert max(map(len, _text(inspection(), width=width).splitlines())) <= width


def test_a_run_with_almost_nothing_in_it() -> None:
    for run in (run_of(), run_of(series("loss", [3.0])), run_of(series("loss", [NAN]))):
        one = finding(run, run_class=RunClass.NOT_JUDGEABLE, diagnosis=None)
        assert "TOO LITTLE TO JUDGE" in _text(inspection(one))
        assert "TOO LITTLE" in _text(inspection(dataclasses.replace(one, episodes=())))
