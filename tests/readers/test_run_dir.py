"""Our own run directory, read as a log: the same values as the journal's view."""

import math
from pathlib import Path

import numpy as np
import pytest

from foreshock.core.log import EventKind, LoggedRun
from foreshock.durable import RealDisk
from foreshock.journal import Journal
from foreshock.logs import ranking, read_log
from foreshock.source import FileSource

IDENTITY = {
    "version": "0.1.0",
    "program": "train.py:program",
    "fingerprint": "c0ffee",
    "stream": {},
    "settings": {},
}
SERIES = ["loss/global", "grad_norm/global", "activation_norm/blocks.0", "lr/global"]


def readings(step: int, attempt: int) -> np.ndarray:
    loss = math.nan if (step, attempt) == (9, 1) else 4.0 - step / 16
    return np.array([loss, 1.5 + attempt, 0.1, 3e-4], np.float32)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    with Journal.create(RealDisk(), path, IDENTITY, lambda: 0.0) as journal:
        for attempt, first, last in ((1, 1, 9), (2, 6, 12)):
            journal.write("attempt_started", attempt=attempt, step=first - 1)
            journal.open_readings(attempt, SERIES)
            for step in range(first, last + 1):
                if (step, attempt) == (8, 1):
                    journal.write(
                        "skip", attempt=1, step=8, durable=False, reason="norm", grad_norm=math.inf
                    )
                journal.append_reading(step, 1, readings(step, attempt))
        journal.write("run_halted", attempt=2, step=12, digest="00")
    return path


def of_attempt(run: LoggedRun, signal: str, attempt: int) -> list[tuple[int, float]]:
    one = run.series[signal]
    mine = one.attempts == attempt
    return list(zip(one.steps[mine].tolist(), one.values[mine].tolist(), strict=True))


def test_the_values_are_those_of_the_journals_view(run_dir: Path) -> None:
    log = read_log(run_dir)
    assert log.format == "run_dir"
    (run,) = log.runs
    view = Journal.read(RealDisk(), run_dir)
    labels = ("loss", "grad_norm", "activation_norm_blocks_0", "lr")
    assert set(run.series) == set(labels)
    for attempt in view.attempts():
        block = view.readings(attempt)
        for place, signal in enumerate(labels):
            found = of_attempt(run, signal, attempt - 1)
            assert [step for step, _ in found] == block.steps.tolist()
            column = block.values[:, place].astype(np.float64)
            np.testing.assert_array_equal([value for _, value in found], column)


def test_a_rollback_is_a_restart(run_dir: Path) -> None:
    (run,) = read_log(run_dir).runs
    assert run.restarts == ((9, 6),)
    assert (np.diff(run.series["loss"].clock) > 0).all()
    kinds = [(event.kind, event.step) for event in run.events]
    assert (EventKind.SKIPPED, 8) in kinds or (EventKind.SKIPPED, 7) in kinds
    assert kinds[-1] == (EventKind.STOPPED, 12)


def test_skips_stand_at_their_step(run_dir: Path) -> None:
    (run,) = read_log(run_dir).runs
    (skip,) = [event for event in run.events if event.kind is EventKind.SKIPPED]
    assert skip.step == 8
    assert skip.signal == "grad_norm"
    assert "inf" in skip.text


def test_a_torn_end_is_noted(run_dir: Path) -> None:
    path = run_dir / "readings/attempt-00002/000000001.bin"
    path.write_bytes(path.read_bytes()[:-3])
    with (run_dir / "decisions.jsonl").open("ab") as file:
        file.write(b'{"kind":"al')
    log = read_log(run_dir)
    assert of_attempt(log.runs[0], "loss", 1)[-1][0] == 11
    assert sum("no whole record" in note for note in log.notes) == 2


def test_damaged_files_leave_the_others_readable(run_dir: Path) -> None:
    (run_dir / "readings/attempt-00001/000000001.bin").write_bytes(b"FSHKREAD" + b"\xff" * 100)
    lines = (run_dir / "decisions.jsonl").read_bytes().split(b"\n")
    lines[0] = lines[0].replace(b"1", b"7", 1)
    (run_dir / "decisions.jsonl").write_bytes(b"\n".join(lines))
    log = read_log(run_dir)
    assert log.runs[0].series["loss"].steps.tolist() == [6, 7, 8, 9, 10, 11, 12]
    assert any("attempt-00001" in note for note in log.notes)
    assert any("decisions" in note for note in log.notes)


def test_many_modules_are_bounded(tmp_path: Path) -> None:
    names = ["loss/global", *(f"param_norm/blocks.{i}" for i in range(900))]
    with Journal.create(RealDisk(), tmp_path / "run", IDENTITY, lambda: 0.0) as journal:
        journal.open_readings(1, names[::-1])
        journal.append_reading(1, 1, np.arange(901, dtype=np.float32))
    (run,) = read_log(tmp_path / "run").runs
    assert run.series["loss"].values.tolist() == [900.0]
    assert len(run.series) < 600


def test_what_is_recognised(run_dir: Path) -> None:
    assert ranking(FileSource(run_dir).sample())[0][1].name == "run_dir"
    (run_dir / "run.json").unlink()
    found = [reader.name for _, reader in ranking(FileSource(run_dir).sample())]
    assert "run_dir" not in found
