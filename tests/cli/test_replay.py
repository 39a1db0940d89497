"""`foreshock replay`: the example of docs/replay.md, typed as it stands there."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from foreshock.cli.main import cli
from foreshock.cli.replay import _budget
from foreshock.core.errors import ConfigError
from foreshock.durable import RealDisk
from foreshock.replays import read_replay

PAGE = Path(__file__).parents[2] / "docs" / "replay.md"
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def block(language: str, beginning: str) -> str:
    (found,) = [text for kind, text in BLOCKS if kind == language and text.startswith(beginning)]
    return found


COMMANDS = [
    shlex.split(line)[1:] for line in block("sh", "foreshock run").replace("\\\n", " ").splitlines()
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("example")
    (folder / "train.py").write_text(block("python", "import numpy"))
    (folder / "recipe.toml").write_text(block("toml", "rules"))
    done = invoke(folder, COMMANDS[0])
    assert done.exit_code == 0, done.output
    torch.set_num_threads(threads)
    return folder


def invoke(folder: Path, arguments: list[str], *more: str) -> Any:
    own = {"train.py:program": f"{folder}/train.py:program", "run": f"{folder}/run"}
    own["recipe.toml"] = f"{folder}/recipe.toml"
    given = [arguments[0], *(own.get(one, one) for one in arguments[1:]), *more]
    return CliRunner().invoke(cli, given, env={"COLUMNS": "100"})


def test_the_example_says_what_the_page_says(folder: Path) -> None:
    before = (folder / "run" / "decisions.jsonl").read_bytes()
    done = invoke(folder, COMMANDS[1], "--seed", "0")
    assert done.exit_code in (0, 1), done.output
    told = block("", "earlier_state:").splitlines()
    said = [line for line in done.stderr.splitlines() if re.match(r"\w+: \w+;", line)]
    assert [line.partition(";")[0] for line in said] == [line.partition(";")[0] for line in told]
    assert (folder / "run" / "decisions.jsonl").read_bytes() == before
    found = read_replay(RealDisk(), folder / "run", 1)
    assert found is not None
    assert found.exact is True
    assert [f"{one.experiment}: {one.outcome}" for one in found.results] == [
        line.partition(";")[0] for line in told
    ]
    assert found.after.data_suspicion > found.before.data_suspicion
    assert (done.exit_code == 0) is found.is_settled
    shown = done.stdout
    assert f"{found.num_steps:,} steps trained" in " ".join(shown.split())
    assert "before" in shown and "after" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_json_says_the_same_and_nothing_else(folder: Path) -> None:
    arguments = [*COMMANDS[1][:-1], "replay,twice", "--json"]
    done = invoke(folder, arguments)
    told = json.loads(done.stdout)
    assert done.stderr == ""
    assert [one["result"]["outcome"] for one in told["told"]] == ["comes_back", "same_bits"]
    assert told["incident"] == 1
    assert Path(told["file"]).is_file()
    assert sum(told["told"][0]["after"].values()) == pytest.approx(1)
    assert {one["experiment"] for one in told["open"]} == set()
    assert done.exit_code == (0 if told["settled"] else 1)


def test_a_budget_of_steps_is_kept_and_what_is_open_is_told(folder: Path) -> None:
    arguments = [*COMMANDS[1][:-2], "--budget", "12steps", "--json"]
    done = invoke(folder, arguments)
    told = json.loads(done.stdout)
    assert done.exit_code == 1
    assert told["num_steps"] <= 12
    assert told["why"] == "the budget is spent"
    assert told["open"]
    assert all(one["num_steps"] > 0 for one in told["open"])


@pytest.mark.slow
def test_the_investigation_of_a_batch_shows_a_timeline_first(folder: Path) -> None:
    arguments = [*COMMANDS[1][:-2], "--preset", "batch"]
    done = invoke(folder, arguments)
    assert "steps around the onset" in done.stdout
    assert "samples: " in done.stdout
    found = read_replay(RealDisk(), folder / "run", 1)
    assert found is not None
    assert found.results[0].experiment == "earlier_state"
    outcomes = {one.experiment: one.outcome for one in found.results}
    assert outcomes["left_out"] == "stays_away"
    assert outcomes["bisection"] in ("few_samples", "many_samples")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--experiments", "guess"], "there is no experiment 'guess'"),
        (["--experiments", "twice,twice"], "named twice"),
        (["--preset", "guess"], "there is no preset"),
        (["--preset", "batch", "--experiments", "twice"], "not both"),
        (["--budget", "soon"], "like 30s, 10m, 1h or 500steps"),
        (["--incident", "9"], "no incident 9"),
    ],
)
def test_mistakes_are_one_sentence(folder: Path, more: list[str], said: str) -> None:
    done = invoke(folder, COMMANDS[1][:-2], *more)
    assert said in str(done.exception)
    assert getattr(done.exception, "exit_code", None) == 2


def test_a_budget_is_of_time_or_of_steps() -> None:
    class Scene:
        steps_trained = 7

    scene: Any = Scene()
    assert _budget("7steps")(scene)() is True
    assert _budget("8steps")(scene)() is False
    assert _budget("0s")(scene)() is True
    assert _budget("1.5h")(scene)() is False
    for text in ("10", "m", "-1m", "1d", "10 m s"):
        with pytest.raises(ConfigError, match="--budget"):
            _budget(text)
