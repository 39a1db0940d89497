"""The report in a terminal, and the command that makes it."""

import io
import json
from pathlib import Path

import typer
from rich.console import Console
from typer.testing import CliRunner

from foreshock.cli.report import command
from foreshock.report.summary import RunSummary
from foreshock.report.text import print_summary
from tests.report.runs import Script, diagnosis, one_rollback, summary
from tests.report.test_summary import aftermath

APP = typer.Typer()
APP.command()(command)


def _text(run: RunSummary) -> str:
    out = io.StringIO()
    print_summary(run, Console(file=out, width=80, color_system=None))
    return out.getvalue()


def test_the_verdict_comes_first_and_nothing_is_wider_than_80(tmp_path: Path) -> None:
    one_rollback(tmp_path / "run")
    text = _text(summary(tmp_path / "run"))
    assert text.splitlines()[0].startswith("Finished at step 200; one incident")
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    assert "update_ratio/global moved first, 1 step before the loss" in flat
    assert "held_out_loss 2 → 2.02 (tolerance 0.1) within noise" in flat


def test_all_that_came_after_fits_in_80_columns(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    aftermath(run)
    run.write("paused", key="plan9/0", reason="look", timeout_secs=7200.0)
    text = _text(summary(tmp_path / "run"))
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    for part in (
        "rollback_further", "lifted by a person after 1 min", "the run waits, for 2 h 00 min in",
        "held_out_loss/code 2 → 3 (tolerance 0.1) worse", "failed, looked at once more",
        "code text, which teaches held out loss/code", "2 given back, by 7 replays",
        "2 notifications by slack (URL 1) not delivered", "stayed in memory", "only 1.5 MB were",
        "waits for a person since step 200",
    ):  # fmt: skip
        assert part in flat, part
    assert "resume.now" in flat.replace(" ", "")  # a long path is folded anywhere
    run.close()


def test_markup_and_control_characters_are_shown_as_they_are(tmp_path: Path) -> None:
    run = Script(tmp_path / "run", program="[bold]x[/bold] \x1b[2J")
    run.start()
    run.train(130)
    run.plan(diagnosis(statement="[red]no[/red] [/] :smile:"), why="[link=x]y[/link]")
    run.close()
    text = _text(summary(tmp_path / "run"))
    for shown in ("[bold]x[/bold] \ufffd[2J", "[red]no[/red] [/] :smile:", "[link=x]y[/link]"):
        assert shown in text
    assert "\x1b" not in text


def test_the_command(tmp_path: Path) -> None:
    run_dir = one_rollback(tmp_path / "run").run_dir
    runner = CliRunner()
    done = runner.invoke(APP, [str(run_dir), "--json"])
    assert json.loads(done.output)["state"] == "finished"
    done = runner.invoke(APP, [str(run_dir), "--text"])
    assert "Finished at step 200" in done.output
    done = runner.invoke(APP, [str(run_dir), "--compare", str(run_dir)])
    assert done.exit_code == 0
    assert (run_dir / "report.html").stat().st_size > 100_000
    assert str(run_dir / "report.html") in done.output.replace("\n", "")
