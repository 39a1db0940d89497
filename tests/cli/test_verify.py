"""`foreshock verify`: two states of a model, from runs and from files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from click.testing import Result
from typer.testing import CliRunner

from foreshock.cli.main import app, cli
from foreshock.core.program import Settings
from foreshock.driver import build, load_program
from foreshock.weights import find_weights
from tests.cli.programs import write

HELD_OUT = "[Data()[i][None] for i in range(100, 124)]"


def invoke(*arguments: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments], env=env)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A program and a finished run of it, with snapshots on disk."""
    folder = tmp_path_factory.mktemp("trained")
    program = f"{write(folder, held_out=HELD_OUT)}:program"
    recipe = folder / "recipe.toml"
    recipe.write_text("[cadence]\ndisk_steps = 10\nmemory_steps = 10\ndisk_keep = 9\n")
    run = folder / "run"
    done = invoke("run", program, "--run-dir", run, "--max-steps", 90, "--config", recipe)
    assert done.exit_code == 0, done.output
    return program, run


def verified(*arguments: object) -> tuple[int, dict[str, Any]]:
    result = invoke("verify", *arguments, "--json")
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, json.loads(result.stdout)


def weights_of(program: str, state: str) -> dict[str, torch.Tensor]:
    model = build(load_program(program), Settings()).model
    find_weights(state).load_into(model)
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_a_later_state_of_a_healthy_run_is_whole(trained: tuple[str, Path]) -> None:
    program, run = trained
    code, found = verified(f"{run}@80", run, "--program", program)
    assert (code, found["whole"], found["worse"]) == (0, True, [])
    assert found["num_neighbours"] >= 4
    assert found["after"] == f"{run}@90"
    (one,) = found["capabilities"]
    assert one["probe"] == "held_out_loss" and one["movement"] > 0 and one["num_items"] == 24


def test_a_spoiled_file_is_worse_and_says_in_what(
    trained: tuple[str, Path], tmp_path: Path
) -> None:
    program, run = trained
    state = weights_of(program, f"{run}@90")
    state["2.bias"] += 100.0
    spoiled = tmp_path / "spoiled.safetensors"
    safetensors.torch.save_file(state, spoiled)
    code, found = verified(f"{run}@80", spoiled, "--program", program)
    assert (code, found["worse"]) == (1, ["held_out_loss"])
    same = tmp_path / "same.safetensors"
    safetensors.torch.save_file(weights_of(program, f"{run}@80"), same)
    code, found = verified(same, f"{run}@80", "--program", program)
    assert code == 0 and found["capabilities"][0]["difference"] == 0
    assert found["num_neighbours"] == 0


def test_a_snapshot_is_named_by_step_or_id(trained: tuple[str, Path]) -> None:
    _, run = trained
    by_step = find_weights(f"{run}@50").ref
    assert by_step is not None and by_step.step == 50
    assert find_weights(f"{run}@{by_step.id}").ref == by_step
    newest = find_weights(str(run)).ref
    assert newest is not None and newest.step == 90


@pytest.mark.parametrize("columns", [80, 200])
def test_the_table_fits(trained: tuple[str, Path], columns: int) -> None:
    program, run = trained
    result = invoke("verify", f"{run}@80", run, "--program", program, env={"COLUMNS": str(columns)})
    assert result.exit_code == 0
    table = [line for line in result.output.splitlines() if "held_out_loss" in line]
    assert len(table) == 1 and table[0].rstrip().endswith("whole")
    assert all(len(line) <= columns for line in result.output.splitlines() if "  " in line)


def refused(*arguments: object, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        app([str(one) for one in arguments])
    assert left.value.code == 2
    return capsys.readouterr().err


def test_what_cannot_be_compared_is_one_sentence(
    trained: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, run = trained
    assert "give --program" in refused("verify", run, run, capsys=capsys)
    options = ("--program", program)
    said = refused("verify", tmp_path / "none", run, *options, capsys=capsys)
    assert "there is no" in said
    assert "no snapshot '55'" in refused("verify", f"{run}@55", run, *options, capsys=capsys)
    (tmp_path / "empty").mkdir()
    said = refused("verify", tmp_path / "empty", run, *options, capsys=capsys)
    assert "no run.json" in said
    other = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"0.weight": torch.zeros(3, 3), "x": torch.zeros(1)}, other)
    said = refused("verify", other, run, *options, capsys=capsys)
    assert "another model" in said and "0.bias is missing" in said
    for content in (b"", b"\x80\x04." * 9, (2**60).to_bytes(8, "little") + b"{}"):
        other.write_bytes(content)
        assert "no weights can be read" in refused("verify", other, run, *options, capsys=capsys)


def test_a_damaged_snapshot_is_refused(
    trained: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, run = trained
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    (path,) = copied.glob("snapshots/00000080-*/tensors.safetensors")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    said = refused("verify", f"{copied}@80", copied, "--program", program, capsys=capsys)
    assert "tensors.safetensors" in said


def test_reading_a_run_writes_nothing(trained: tuple[str, Path]) -> None:
    program, run = trained
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    verified(f"{run}@80", run, "--program", program)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
