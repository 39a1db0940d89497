"""What `watch` keeps in a run directory, and that it is read back as it was."""

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import foreshock
from foreshock.cli.main import cli
from foreshock.core.errors import RunDirError
from foreshock.core.reading import is_absent
from foreshock.durable import RealDisk
from foreshock.journal import Journal
from foreshock.lab.gpt import GPT, GPTConfig


def train(run_dir: Path, steps: int = 25, *, spoil_at: int = 0) -> foreshock.Watch:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=13, width=16, depth=2, heads=2, context=8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with foreshock.watch(model, optimizer, run_dir=run_dir) as watched:
        for step in range(1, steps + 1):
            tokens = torch.randint(0, 13, (4, 8))
            loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            if step == spoil_at:
                model.head.weight.grad[0, 0] = torch.nan
            watched.loss(loss)
            optimizer.step()
            optimizer.zero_grad()
    return watched


def test_readings_come_back_as_they_were(tmp_path: Path) -> None:
    watched = train(tmp_path / "run")
    run = foreshock.open(tmp_path / "run")
    assert set(run.series()) == set(watched.series)
    found = run.read(None)
    assert found.steps.tolist() == list(range(1, 26))
    for name in ("loss/global", "grad_norm/blocks.1.attn", "max_attention_logit/blocks.0.attn"):
        kept = [reading.value for reading in watched.readings(name)]
        assert found[name].tolist() == kept
    rare = found["param_norm/global"]
    assert np.flatnonzero(~is_absent(rare)).tolist() == [9, 19]


def test_alarms_are_journalled(tmp_path: Path) -> None:
    watched = train(tmp_path / "run", spoil_at=12)
    kept = [
        record["alarm"]
        for record in Journal.read(RealDisk(), tmp_path / "run").records
        if record["kind"] == "alarm"
    ]
    assert [alarm.to_json() for alarm in watched.alarms] == kept
    assert {alarm["step"] for alarm in kept if alarm["kind"] == "nonfinite"} >= {12, 13}


def test_a_watched_run_is_diagnosed_like_any_other(tmp_path: Path) -> None:
    train(tmp_path / "run", spoil_at=12)
    result = CliRunner().invoke(cli, ["diagnose", str(tmp_path / "run")])
    assert result.exit_code == 1, result.output
    assert "12" in result.output


def test_it_is_reported_and_exported(tmp_path: Path) -> None:
    train(tmp_path / "run")
    result = CliRunner().invoke(cli, ["report", str(tmp_path / "run"), "--text"])
    assert result.exit_code == 0, result.output
    target = tmp_path / "readings.csv"
    result = CliRunner().invoke(cli, ["export", str(tmp_path / "run"), "--to", str(target)])
    assert result.exit_code == 0, result.output
    assert len(target.read_text().splitlines()) == 26


def test_a_directory_with_something_in_it_is_refused_and_nothing_is_hooked(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RunDirError, match="mine"):
        foreshock.watch(model, optimizer, run_dir=tmp_path)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not optimizer._optimizer_step_pre_hooks
