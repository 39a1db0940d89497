"""`foreshock signals`: what would be recorded, and what it costs."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foreshock.cli.main import app, cli
from tests.cli.programs import write


def listed(program: Path, *options: str) -> dict[str, Any]:
    arguments = ["signals", f"{program}:program", "--steps", "2", "--json", *options]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_signal_is_listed_with_what_it_is(tmp_path: Path) -> None:
    found = listed(write(tmp_path))
    signals = {one["name"]: one for one in found["signals"]}
    assert signals["gradients"]["exactness"] == "exact"
    assert signals["update_ratio"]["exactness"] == "sampled"
    assert signals["param_norm"]["interval_steps"] == 10
    assert signals["gradients"]["num_series"] > 3
    assert all(one["passes"] and one["cost_pct"] >= 0 for one in signals.values())
    assert found["step_secs"] > 0 and found["bytes_per_step"] > 4 * len(signals)
    parts = [*found["signals"], *(one for one in found["others"] if one["name"] != "norms")]
    assert found["total_pct"] == pytest.approx(sum(one["cost_pct"] for one in parts))


def test_what_is_measured_costs_something(tmp_path: Path) -> None:
    signals = {one["name"]: one for one in listed(write(tmp_path))["signals"]}
    for name in ("moments", "update_ratio", "grad_extremes", "gradients"):
        assert signals[name]["cost_pct"] > 0, name


def test_levels_list_more_and_more(tmp_path: Path) -> None:
    program = write(tmp_path)
    names = {
        level: {one["name"] for one in listed(program, "--level", level)["signals"]}
        for level in ("minimal", "standard", "full")
    }
    assert names["minimal"] < names["standard"] < names["full"]


def test_a_recipe_is_listed_as_it_is(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('level = "minimal"\n[signals.param_norm]\ninterval_steps = 3\n')
    found = listed(write(tmp_path), "--config", str(recipe))
    signals = {one["name"]: one for one in found["signals"]}
    assert signals["param_norm"]["interval_steps"] == 3
    assert "moments" not in signals


def test_the_table_fits_eighty_columns(tmp_path: Path) -> None:
    arguments = ["signals", f"{write(tmp_path)}:program", "--steps", "1", "--level", "full"]
    result = CliRunner().invoke(cli, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert "optimizer_state" in result.stdout and "100 steps" in result.stdout


def test_programs_with_scaler_accumulation_and_terms(tmp_path: Path) -> None:
    more = """
        def parts(model, batch):
            each = (model(batch) - batch.sum(1, keepdim=True)).square().mean(1)
            return foreshock.Loss(total=each.mean(), terms={"mse": each.mean()}, per_sample=each)
        """
    program = write(
        tmp_path,
        more=more,
        loss="parts",
        terms="('mse',)",
        per_sample="True",
        accumulate="2",
        scaler="torch.amp.GradScaler('cpu', init_scale=4.0)",
        scheduler="torch.optim.lr_scheduler.ConstantLR(optimizer)",
    )
    signals = {one["name"]: one for one in listed(program)["signals"]}
    assert signals["loss"]["num_series"] == 5
    assert signals["schedule"]["num_series"] == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--level", "everything"], "minimal, standard, full"), (["--set", "lr"], "NAME=VALUE")],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    with pytest.raises(SystemExit) as left:
        app(["signals", f"{write(tmp_path)}:program", *options])
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert says in told and "Traceback" not in told
