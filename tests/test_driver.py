"""Programs are loaded as `python PATH.py` would, and built afresh each time."""

import pickle
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from foreshock.core.errors import ConfigError, ProgramError
from foreshock.core.program import Settings
from foreshock.driver import build, guard_for, load_program, seed_everything, train
from tests.cli.programs import write


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "train", raising=False)


def test_the_same_function_builds_the_same_run_twice(tmp_path: Path) -> None:
    function = load_program(f"{write(tmp_path)}:program")
    digests = []
    for name in ("one", "two"):
        program = build(function, Settings(seed=3, max_steps=5))
        with guard_for(program, name="p", run_dir=tmp_path / name, max_steps=5) as guard:
            train(program, guard)
            digests.append(guard.digest())
    assert digests[0] == digests[1]


def test_a_program_file_finds_its_neighbours_and_itself(tmp_path: Path) -> None:
    (tmp_path / "my_neighbour.py").write_text("LR = 0.25\n")
    path = write(
        tmp_path,
        more="""
        from dataclasses import dataclass
        from my_neighbour import LR
        @dataclass
        class Thing:
            size: "int" = 3
        """,
    )
    for _ in range(2):
        function = load_program(f"{path}:program")
        module = sys.modules["train"]
        assert function is module.program
        assert module.LR == 0.25
        assert pickle.loads(pickle.dumps(module.Thing())).size == 3
    assert sys.path.count(str(tmp_path)) == 1


@pytest.mark.parametrize("name", ["json", "sys", "torch"])
def test_a_program_file_named_like_a_module_does_not_replace_it(tmp_path: Path, name: str) -> None:
    path = write(tmp_path).rename(tmp_path / f"{name}.py")
    before = sys.modules[name]
    function = load_program(f"{path}:program")
    assert sys.modules[name] is before
    assert build(function, Settings()).clip == 1.0


def test_held_out_data_may_be_one_tensor(tmp_path: Path) -> None:
    path = write(tmp_path, held_out="torch.ones(3, 2, 4)")
    program = build(load_program(f"{path}:program"), Settings())
    with guard_for(program, name="p", run_dir=tmp_path / "run", max_steps=2) as guard:
        train(program, guard)
    assert guard.step_number == 2


def test_an_error_names_the_line_of_the_users_file_that_raised(tmp_path: Path) -> None:
    path = write(tmp_path, loss="lambda m, b: torch.nn.functional.linear(b, b[:, :2])")
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "lambda" in text)
    program = build(load_program(f"{path}:program"), Settings())
    said = rf"step 1: .*\({path}, line {line}\)$"
    guard = guard_for(program, name="p", run_dir=tmp_path / "run")
    with guard, pytest.raises(ProgramError, match=said):
        train(program, guard)


def test_seeding_seeds_every_global_generator() -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), np.random.random(), torch.rand(()).item()

    seed_everything(2**63 - 1)
    first = drawn()
    seed_everything(2**63 - 1)
    assert drawn() == first
    for seed in (-1, 2**63):
        with pytest.raises(ConfigError, match="seed is"):
            seed_everything(seed)
