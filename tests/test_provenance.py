"""Which samples went into a step, told from the run directory alone."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foreshock.cli.main import cli
from foreshock.core.errors import RunDirError
from foreshock.data.stream import Stage, Stream
from foreshock.durable import RealDisk
from foreshock.journal import Journal
from foreshock.provenance import samples_of


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of two attempts: step 2 was trained twice, on other samples."""
    stage = Stage(name="main", sources={"web": range(30), "code": range(10)})
    stream = Stream(stage, batch_size=4, seed=3)
    identity = {"program": "p", "fingerprint": 1, "stream": stream.describe()}
    with Journal.create(RealDisk(), tmp_path / "run", identity, lambda: 0.0) as journal:
        for attempt, positions in (
            (1, {1: [0, 1, 2, 3], 2: [4, 5, 6, 7]}),
            (2, {2: [8, 9, 10, 11]}),
        ):
            journal.open_provenance(attempt)
            for step, consumed in positions.items():
                journal.append_provenance(step, consumed)
    return tmp_path / "run"


def test_names_are_those_that_the_stream_gave_out(run_dir: Path) -> None:
    stage = Stage(name="main", sources={"web": range(30), "code": range(10)})
    stream = Stream(stage, batch_size=4, seed=3)
    found = samples_of(Journal.read(RealDisk(), run_dir), 1)
    assert [(one.source, one.index) for one in found] == [
        (one.source, one.index) for one in stream.next_batch().ids
    ]
    assert {one.stage for one in found} == {"main"}


def test_a_step_that_was_trained_twice_is_told_by_attempt(run_dir: Path) -> None:
    view = Journal.read(RealDisk(), run_dir)
    assert [(one.attempt, one.position) for one in samples_of(view, 2)] == [
        *[(1, at) for at in (4, 5, 6, 7)],
        *[(2, at) for at in (8, 9, 10, 11)],
    ]
    assert {one.attempt for one in samples_of(view, 2, attempt=2)} == {2}
    assert samples_of(view, 3) == []


def test_a_loader_of_ones_own_leaves_no_provenance(tmp_path: Path) -> None:
    identity = {"program": "p", "fingerprint": 1, "stream": None}
    Journal.create(RealDisk(), tmp_path / "run", identity, lambda: 0.0).close()
    with pytest.raises(RunDirError, match="data loader of its own"):
        samples_of(Journal.read(RealDisk(), tmp_path / "run"), 1)


def test_the_command(run_dir: Path) -> None:
    found = CliRunner().invoke(cli, ["samples", str(run_dir), "--step", "2", "--json"])
    assert [one["attempt"] for one in json.loads(found.output)] == [1] * 4 + [2] * 4
    found = CliRunner().invoke(cli, ["samples", str(run_dir), "--step", "2"])
    assert "web" in found.output
