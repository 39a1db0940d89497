"""The documentation's code runs as it stands there."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import foreshock
from foreshock import recipes
from foreshock.catalog import members
from foreshock.cli.main import cli
from foreshock.core.names import STANDARD

ROOT = Path(__file__).parent.parent


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the README's loops take for granted: a model, an optimizer, data."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    samples = [torch.full((4,), index / 2560) for index in range(2560)]
    return {
        "foreshock": foreshock,
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
        "web": samples[:1280],
        "code": samples[1280:],
        "loader": torch.stack(samples).split(64),
        "loss_fn": lambda model, batch: (model(batch) - batch.sum(1, keepdim=True)).square().mean(),
    }


def test_plain_loop_of_the_readme(names: dict[str, Any], tmp_path: Path) -> None:
    before = names["loss_fn"](names["model"], torch.stack(names["web"])).item()
    exec(python_blocks("README.md")[0], names)
    guard = names["guard"]
    assert guard.step_number == 40
    assert guard.halted is None
    assert (tmp_path / "runs/a/decisions.jsonl").exists()
    assert names["loss_fn"](names["model"], torch.stack(names["web"])).item() < before


def test_watching_loop_of_the_readme(names: dict[str, Any]) -> None:
    exec(python_blocks("README.md")[1], names)
    assert len(names["watched"].readings("grad_norm/global")) == 40


def test_the_run_of_the_readme_is_read_back(names: dict[str, Any]) -> None:
    exec(python_blocks("README.md")[0], names)
    exec(python_blocks("README.md")[2], names)
    assert names["frame"].num_rows == 40
    assert "loss/global" in names["frame"].column_names


def test_the_loops_of_the_signals_page(names: dict[str, Any]) -> None:
    watching, reading = python_blocks("docs/signals.md")
    exec(watching, names)
    assert len(names["watched"].readings("grad_norm/global")) == 40
    exec(reading.replace("(20_000, 21_000)", "(20, 30)"), names)
    assert names["norms"].values.shape[0] == 11
    assert len(names["norms"]["grad_norm/global"]) == 11


def test_the_signals_page_names_every_signal_and_series() -> None:
    page = (ROOT / "docs/signals.md").read_text()
    assert {name for name in members("signals") if f"| `{name}` |" not in page} == set()
    for name, kind in members("signals").items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert kind.level in row
    assert {one.name for one in STANDARD if f"`{one.name}" not in page} == set()


def test_the_recipe_of_the_signals_page(tmp_path: Path) -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/signals.md").read_text(), re.DOTALL)
    (tmp_path / "recipe.toml").write_text(toml)
    signals = {one.name: one for one in recipes.load(tmp_path / "recipe.toml").signals}
    assert signals["param_norm"].interval_steps == 50
    assert "state_digest" in signals


def test_recipe_of_the_readme(tmp_path: Path) -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "recipe.toml").write_text(toml)
    recipe = recipes.load(tmp_path / "recipe.toml")
    assert recipe.rules == ()
    assert recipe.policy.confirm_steps == 2
    assert recipe.cadence.disk_steps == 500


def test_the_quickstart_is_a_complete_program_of_under_sixty_lines(tmp_path: Path) -> None:
    page = ROOT / "docs/quickstart.py"
    assert len(page.read_text().splitlines()) < 60
    arguments = ["run", f"{page}:program", "--run-dir", str(tmp_path / "run"), "--json"]
    first = CliRunner().invoke(cli, [*arguments, "--max-steps", "6"])
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(cli, [*arguments, "--max-steps", "9", "--resume"])
    assert again.exit_code == 0, again.output
    assert '"step": 9' in again.output


def test_stream_of_the_quickstart_page() -> None:
    names: dict[str, Any] = {"foreshock": foreshock}
    names |= {"books": range(100), "web": range(200), "code": range(50)}
    exec(python_blocks("docs/quickstart.md")[0], names)
    assert names["stream"].order.total == 5_100_000


def test_the_stub_is_current() -> None:
    place = ROOT / "tools/write_stub.py"
    spec = importlib.util.spec_from_file_location("write_stub", place)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.STUB.read_text() == tool.stub(), "run: python tools/write_stub.py"


def test_the_run_directory_page_names_every_kind_of_record() -> None:
    page = (ROOT / "docs/run-directory.md").read_text()
    source = "\n".join(path.read_text() for path in (ROOT / "src/foreshock").glob("*.py"))
    written = set(re.findall(r'(?:\bwrite|_write|record|_record)\(\s*"([a-z_]+)"', source))
    written |= {"run_finished", "run_halted"}
    assert len(written) > 15
    assert {kind for kind in written if f"`{kind}`" not in page} == set()
