"""`foreshock minimize` and what `foreshock run` says of it, without a run behind them."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from foreshock import background, minimal
from foreshock.cli import run
from foreshock.cli.main import cli
from foreshock.core.program import Settings
from foreshock.data.requests import Requests
from foreshock.data.stream import Stream
from foreshock.durable import RealDisk
from foreshock.journal import Journal
from tests.cli.programs import write
from tests.data.recovered import closed, finding, planned

KEYS = tuple(("data", n) for n in range(4))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    stream = Stream({"data": list(range(300))}, batch_size=8, seed=4)
    identity = {"program": "p", "fingerprint": "f", "stream": stream.describe()}
    with Journal.create(RealDisk(), tmp_path / "run", identity, lambda: 0.0) as journal:
        journal.write("attempt_started", attempt=1, step=0)
        journal.open_provenance(1)
        for step in range(1, 11):
            journal.append_provenance(step, list(range(8 * step - 8, 8 * step)))
        for kind, fields in [*planned(1, 1, (40, 56)), *closed(1)]:
            journal.write(kind, attempt=1, step=7, **fields)
    return tmp_path / "run"


def invoke(run_dir: Path, program: Path, *more: str) -> Any:
    arguments = ["minimize", str(run_dir), "--program", f"{program}:program", *more]
    return CliRunner().invoke(cli, arguments)


def test_behind_a_run_the_finding_is_left_for_it(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody holds the lock: a run that is resumed must not meet it locked."""
    begun: list[str] = []
    found = finding(1, {})
    monkeypatch.setattr(background, "behind_run", lambda: begun.append("behind"))
    monkeypatch.setattr(minimal, "minimize", lambda *_, **__: found)
    before = (run_dir / "decisions.jsonl").read_bytes()
    done = invoke(run_dir, write(tmp_path), "--behind-run", "--incident", "1", "--json")
    assert done.exit_code == 0, done.output
    assert begun == ["behind"]
    assert json.loads(done.stdout)["taken"] == "left for the run"
    (left,) = Requests(RealDisk(), run_dir).look()
    assert left.found == found  # type: ignore[union-attr]
    assert (run_dir / "decisions.jsonl").read_bytes() == before


def test_time_that_is_up_ends_the_search(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[bool] = []

    def search(*_: Any, is_spent: Any, **__: Any) -> Any:
        spent.append(is_spent())
        return finding(1, {}, reproduced=False)

    monkeypatch.setattr(minimal, "minimize", search)
    for more in ([], ["--minutes", "0"], ["--minutes", "1e6"]):
        done = invoke(run_dir, write(tmp_path), "--dry-run", *more)
        assert done.exit_code == 1, done.output
    assert spent == [False, True, False]
    assert "--behind-run" not in CliRunner().invoke(cli, ["minimize", "--help"]).output


def test_a_run_without_a_search_says_how_it_is_done_by_hand() -> None:
    for by_hand, expected in (("foreshock minimize runs/a", True), (None, False)):
        console = Console(record=True, width=200)
        listen = run._listener(run._progress(console, 10), console, Path("runs/a"), by_hand)
        listen("incident_closed", {"incident": 1, "outcome": "recovered"})
        assert ("foreshock minimize runs/a" in console.export_text()) is expected
        listen("incident_closed", {"incident": 2, "outcome": "halted"})
        assert console.export_text().count("minimize") == 0
        listen("minimized", finding(3, {"plan1/0": KEYS}).to_json())
        assert "incident 3: 4 samples given back" in console.export_text()


@pytest.mark.parametrize(
    ("more", "starts"),
    [
        ([], True),
        (["--no-minimize"], False),
        (["--advise"], False),
        (["--minimize"], True),
        (["--device", "meta"], False),  # an accelerator, as far as this goes
        (["--device", "meta", "--minimize"], True),
    ],
)
def test_it_is_on_by_default_where_the_training_is_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], starts: bool
) -> None:
    commands: list[list[str]] = []

    class Search:
        def __init__(self, command: list[str], *_: Any, **__: Any) -> None:
            commands.append(command)

        def look(self, *_: Any) -> None:
            pass

        def close(self) -> None:
            pass

    monkeypatch.setattr(background, "BackgroundSearch", Search)
    program = write(tmp_path)
    arguments = ["run", f"{program}:program", "--run-dir", str(tmp_path / "r"), "--max-steps", "2"]
    done = CliRunner().invoke(cli, [*arguments, "--seed", "5", "--set", "lr=0.1", *more])
    assert done.exit_code == 0, done.output
    assert len(commands) == starts
    if starts:
        settings = Settings(seed=5, max_steps=2)
        assert commands[0] == background.minimize_command(
            tmp_path / "r",
            f"{program}:program",
            settings,
            config=None,
            overrides=["lr=0.1"],
            minutes=30.0,
        )
