"""The page on sinks is run as it stands."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import foreshock
from foreshock.catalog import members
from foreshock.recipes import load
from foreshock.sinks.jsonl import Jsonl
from tests.sinks.mirrored import RUN, a_run

PAGE = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_table_names_every_sink_and_no_other() -> None:
    table = PAGE.partition("## Destinations")[2].partition("\n\nA logger")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) != []
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(members("sinks"))


@pytest.mark.parametrize("number", range(len(blocks("toml"))))
def test_each_recipe_can_be_read(number: int, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(blocks("toml")[number])
    named = re.findall(r"\[sinks\.(\w+)\]", blocks("toml")[number])
    assert [sink.name for sink in load(path).sinks] == named
    if "Settings of each" in PAGE.partition(blocks("toml")[number])[0]:
        assert set(named) == set(members("sinks"))


def test_the_watched_loop_is_mirrored(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    names: dict[str, Any] = {
        "foreshock": foreshock,
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
        "loader": [torch.ones(8, 4)] * 10,
        "loss_fn": lambda model, batch: model(batch).square().mean(),
    }
    exec(blocks("python")[0], names)
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(tmp_path / "tb"))
    found.Reload()
    assert [one.step for one in found.Scalars("loss/global")] == [2, 4, 6, 8, 10]


def test_a_writer_of_your_own(tmp_path: Path) -> None:
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    names: dict[str, Any] = {"SummaryWriter": writer}
    exec(blocks("python")[1], names)
    (mirror,) = names["sink"].mirrors(RUN)
    mirror.open()
    mirror.take(a_run())
    mirror.close()
    assert list((tmp_path / "runs" / "mine").iterdir())


def test_the_line_for_jq(tmp_path: Path) -> None:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    (tmp_path / "runs").mkdir()
    (mirror,) = Jsonl(path="runs/a.jsonl").mirrors(RUN)
    mirror.open()
    mirror.take([one for one in a_run() if hasattr(one, "alarms")])
    mirror.close()
    done = subprocess.run(
        ["bash", "-c", blocks("sh")[0]], capture_output=True, text=True, timeout=60, check=True
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[1, 3, "loss/global"]]


def test_the_scrape_configuration_is_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(blocks("yaml")[0])
    assert found["rule_files"] == ["foreshock-alerts.yml"]
