"""`foreshock diagnose`: what it prints, what it exits with, and what it promises scripts."""

import builtins
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from foreshock.cli.diagnose import to_json
from foreshock.cli.main import cli
from foreshock.core.errors import ConfigError
from foreshock.core.log import Log
from foreshock.inspection import inspect as inspecting
from foreshock.inspection.finding import Inspection
from foreshock.report.compare import compare
from tests.report.inspections import finding, healthy, inspection

ROOT = Path(__file__).parents[2]
EXAMPLE = "docs/examples/crawl-shard.jsonl"


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three logs of which one is healthy, and a stand-in for the inspection of their content."""
    for name in ("good", "bad", "worse"):
        write_log(tmp_path / f"{name}.log")

    def stand_in(log: Log, *, progress: Callable[[int], None] | None = None) -> Inspection:
        made = healthy() if "good" in log.path else finding()
        return inspection(made, path=log.path)

    monkeypatch.setattr(inspecting, "inspect_log", stand_in)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def write_log(path: Path, length: int = 40) -> None:
    rows = [json.dumps({"step": step, "loss": 3.0, "grad_norm": 1.0}) for step in range(length)]
    path.write_text("\n".join(rows) + "\n")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["diagnose", *arguments])


def test_exit_codes(logs: Path) -> None:
    assert call("good.log").exit_code == 0
    assert call("bad.log").exit_code == 1
    assert call("good.log", "bad.log").exit_code == 1
    assert call("good.log", "absent.log").exit_code == 2
    assert call("bad.log", "absent.log").exit_code == 2
    assert call("good.log", "--format", "no_such").exit_code == 2


def test_what_cannot_be_read_is_one_sentence_and_the_others_are_shown(logs: Path) -> None:
    (logs / "empty.log").write_text("")
    (logs / "noise.bin").write_bytes(bytes(range(256)) * 40)
    done = call("absent.log", "empty.log", "noise.bin", "good.log")
    assert done.exit_code == 2
    told = [line for line in done.stderr.splitlines() if line]
    assert len(told) == 3
    for line, name in zip(told, ("absent.log", "empty.log", "noise.bin"), strict=True):
        assert line.startswith("foreshock: ")
        assert name in line
    assert "Traceback" not in done.output
    assert done.stdout.startswith("HEALTHY")


def test_one_log_in_full_and_several_in_a_line_each(logs: Path) -> None:
    one = call("bad.log").stdout
    assert one.startswith("RECOVERING SPIKE  One loss spike")
    assert "bad.log" in one
    several = call("good.log", "bad.log", "worse.log").stdout.splitlines()
    assert [line.split("  ")[0] for line in several] == [
        "recovering spike",
        "recovering spike",
        "healthy",
        "3 logs, 2 with trouble. Details: -v, or one log alone.",
    ]
    full = call("good.log", "bad.log", "-v").stdout
    assert "HEALTHY" in full
    assert "RECOVERING SPIKE" in full
    assert "grad_norm 9 at step 50" in call("bad.log", "--all-outliers").stdout


def test_patterns_and_folders(logs: Path) -> None:
    assert "3 logs" in call("*.log").stdout
    assert "3 logs" in call(str(logs / "*.log"), "bad.log", "good.log").stdout
    assert "3 logs" in call(".").stdout
    done = call("nothing-*.log")
    assert done.exit_code == 2
    assert "nothing-*.log" in done.stderr


def test_no_line_is_wider_than_the_terminal_nor_ends_in_blanks(logs: Path) -> None:
    for arguments in (["bad.log"], ["bad.log", "good.log", "--compare"], ["*.log", "-v"]):
        lines = call(*arguments).stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert [line for line in lines if line != line.rstrip()] == []


def test_json(logs: Path) -> None:
    done = call("good.log", "bad.log", "absent.log", "--json", "--compare")
    assert done.exit_code == 2
    told = json.loads(done.stdout)
    assert told["schema"] == "foreshock.diagnose/1"
    assert [log["class"] for log in told["logs"]] == ["healthy", "recovering_spike"]
    assert "class" not in told  # there are two
    assert told["errors"][0]["path"] == "absent.log"
    assert "absent.log" in told["errors"][0]["error"]
    assert told["compare"]["num_troubled"] == 1
    assert json.loads(call("bad.log", "--json").stdout)["compare"] is None
    assert json.loads(call("absent.log", "--json").stdout)["logs"] == []


def keys_of(value: Any, name: str = "") -> set[str]:
    """Every key in a JSON value, but not the names of a run's signals."""
    if isinstance(value, dict):
        own = set() if name == "signals" else set(value)
        return own.union(*(keys_of(item, key) for key, item in value.items()))
    if isinstance(value, list):
        return set().union(*(keys_of(item) for item in value))
    return set()


def test_the_page_names_every_key_of_the_json_and_every_class() -> None:
    logs = [inspection(finding(), path=f"{name}.log") for name in "abcd"]
    by_lr = [
        {**to_json(logs, [("x", "y")], compare(logs)), "by": group.to_json()}
        for group in compare(_two_rates()).by_lr
    ]
    keys = keys_of(json.loads(json.dumps(by_lr)))
    assert len(keys) > 60
    page = (ROOT / "docs/diagnose.md").read_text()
    assert {key for key in keys - {"by"} if f"`{key}`" not in page} == set()
    for family in (inspecting.RunClass, inspecting.EpisodeKind):
        assert {str(one) for one in family if f"`{one}`" not in page} == set()


def _two_rates() -> list[Inspection]:
    found = []
    for rate in ("1e-4", "2e-4"):
        run = finding().run
        rest = {name: one for name, one in run.series.items() if name != "lr"}
        alone = type(run)(**{**vars(run), "series": rest})
        found.append(inspection(healthy(alone), path=rate, facts={"lr": rate}))
    return found


def test_the_page_names_every_option() -> None:
    page = (ROOT / "docs/diagnose.md").read_text()
    shown = re.sub(r"\x1b\[[0-9;]*m", "", call("--help").stdout)
    options = set(re.findall(r"--[a-z][a-z-]+", shown)) - {"--help"}
    assert len(options) >= 8
    assert {one for one in options if one not in page} == set()


def test_columns_are_mapped(tmp_path: Path) -> None:
    rows = [json.dumps({"step": step, "kuckuck": 3.0 - step / 100}) for step in range(60)]
    path = tmp_path / "odd.jsonl"
    path.write_text("\n".join(rows))
    told = json.loads(call(str(path), "--map", "loss=kuckuck", "--json").stdout)
    assert told["logs"][0]["runs"][0]["signals"]["loss"] == 60


@pytest.mark.parametrize("given", ["loss", "=x", "loss=", "="])
def test_a_malformed_map_is_named(logs: Path, given: str) -> None:
    done = call("good.log", "--map", given)
    assert isinstance(done.exception, ConfigError)
    assert "SIGNAL=LABEL" in str(done.exception)


def test_formats_are_listed(logs: Path) -> None:
    done = call("--formats")
    assert done.exit_code == 0
    assert any(line.startswith("megatron ") for line in done.stdout.splitlines())


def test_no_path_at_all_is_a_mistake() -> None:
    assert isinstance(call().exception, ConfigError)


def test_html(logs: Path) -> None:
    done = call("bad.log", "good.log", "--compare", "--html", "deep/out.html")
    assert done.exit_code == 1
    assert done.stdout.rstrip().endswith("deep/out.html")
    assert "side by side" in (logs / "deep/out.html").read_text("utf-8")
    done = call("bad.log", "--json", "--html", "again.html")
    assert json.loads(done.stdout)["errors"] == []
    assert (logs / "again.html").exists()
    assert call("absent.log", "--html", "none.html").exit_code == 2
    assert not (logs / "none.html").exists()


def test_missing_packages_are_named_before_anything_is_read(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "bokeh":
            raise ImportError("no", name="bokeh")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    done = call("bad.log", "--html", "out.html")
    assert "foreshock[report]" in str(done.exception)
    assert done.stdout == ""


def _in_a_new_process(
    *arguments: str, folder: Path = ROOT, without: str = "", **env: str
) -> subprocess.CompletedProcess[bytes]:
    hidden = "".join(f"sys.modules[{name!r}] = None\n" for name in without.split())
    code = f"import sys\n{hidden}from foreshock.cli.main import app\napp()"
    return subprocess.run(
        [sys.executable, "-c", code, "diagnose", *arguments],
        capture_output=True,
        check=False,
        timeout=300,
        cwd=folder,
        env={**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1", **env},
    )


def test_it_works_without_torch_bokeh_and_jinja_and_in_ascii() -> None:
    done = _in_a_new_process(
        EXAMPLE,
        without="torch bokeh jinja2 safetensors pyarrow tensorboard wandb",
        PYTHONIOENCODING="ascii",
    )
    assert done.returncode == 1, done.stderr
    text = done.stdout.decode("ascii")
    assert text.startswith("RECOVERING SPIKE  ")
    assert "##" in text
    assert "x" in text
    assert "P" in text
    assert done.stderr == b""


def test_the_example_of_the_readme_is_what_the_command_prints() -> None:
    (block,) = re.findall(r"```\n\$ foreshock diagnose [^\n]*\n(.*?)```", _readme(), re.DOTALL)
    printed = _in_a_new_process(EXAMPLE, PYTHONIOENCODING="utf-8").stdout.decode("utf-8")
    assert block.strip() == printed.strip(), f"the README shows what is no longer so:\n{printed}"
    assert len(printed.splitlines()) <= 40


def _readme() -> str:
    return (ROOT / "README.md").read_text("utf-8")


def test_hostile_file_names_do_not_drive_the_terminal(logs: Path) -> None:
    name = "bad[bold]\x1b[2J.log"
    write_log(logs / name)
    for arguments in ([name], [name, "good.log"], [name, "absent\x1b[2J"]):
        done = call(*arguments)
        assert "\x1b" not in done.stdout
        assert "\x1b[2J" not in done.stderr
        assert "bad[bold]" in done.stdout


def test_a_real_log_through_the_real_inspection(tmp_path: Path) -> None:
    rows = []
    for step in range(1, 601):
        loss = 3.0 + 0.02 * ((step * 7919) % 13 - 6) + (4.0 if 400 <= step < 408 else 0.0)
        rows.append(json.dumps({"step": step, "loss": loss, "grad_norm": 1 + 0.1 * (step % 5)}))
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(rows))
    done = call(str(path), "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    (log,) = told["logs"]
    assert {key: told[key] for key in log if key != "runs"} == {
        key: value for key, value in log.items() if key != "runs"
    }
    worst = next(one for one in log["episodes"] if one["kind"] != "benign_outlier")
    assert abs(worst["onset_step"] - 400) <= 2
    assert "O" in call(str(path)).stdout
