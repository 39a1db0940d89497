"""`foreshock run --check-determinism`: what it says, keeps, and leaves alone."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from foreshock.cli.main import app
from foreshock.durable import RealDisk
from foreshock.journal import Journal
from foreshock.vetting import vet
from tests.cli.programs import write

NEVER_THE_SAME = """
import itertools
calls = itertools.count()
exact = loss

def loss(model, batch):
    return exact(model, batch) * (1 + 1e-3 * next(calls))
"""


@pytest.fixture
def run_it(tmp_path: Path, capsys, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(run_dir: str, *more: str) -> tuple[int, str, str]:
        monkeypatch.delitem(sys.modules, "train", raising=False)
        capsys.readouterr()
        arguments = ["run", "train.py:program", "--run-dir", run_dir, "--max-steps", "4", *more]
        with pytest.raises(SystemExit) as left:
            app(arguments)
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return call


def records(run_dir: Path):
    view = Journal.read(RealDisk(), run_dir)
    vet(view.records, run_dir)
    return [one for one in view.records if one["kind"] == "determinism"]


def test_it_is_journalled_and_the_run_is_the_same(tmp_path, run_it) -> None:
    write(tmp_path)
    code, plain, _ = run_it("plain", "--json")
    assert code == 0 and records(tmp_path / "plain") == []
    code, checked, _ = run_it("checked", "--json", "--check-determinism")
    assert code == 0
    assert json.loads(checked)["digest"] == json.loads(plain)["digest"]
    (told,) = records(tmp_path / "checked")
    assert told["equal"] is True and told["num_steps"] == 3 and told["device"] == "cpu"
    assert run_it("checked", "--resume", "--max-steps", "6", "--json")[0] == 0  # a resume reads it
    code, _, said = run_it("said", "--check-determinism")
    assert "3 steps run twice from one state gave the same bits" in said


def test_what_is_not_exact_is_said_and_trains_on(tmp_path, run_it) -> None:
    write(tmp_path, more=NEVER_THE_SAME)
    code, _, said = run_it("run", "--check-determinism")
    assert code == 0
    assert "the forward differs (loss" in " ".join(said.split())
    (told,) = records(tmp_path / "run")
    assert (told["equal"], told["where"], told["first_step"]) == (False, "forward", 1)
    assert told["differing"][0] == "loss"


def test_on_several_ranks_it_is_refused(tmp_path, run_it, monkeypatch) -> None:
    write(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, said = run_it("run", "--check-determinism")
    assert code == 2
    assert "on one process" in said
    assert not (tmp_path / "run").exists()
