"""The benchmark of integrations finds what is exact, and says so when it is not."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.integrations import measure
from benchmarks.integrations.loops import PACKAGES, STAND_INS, loop_of
from benchmarks.integrations.loops.plain import LOOP
from benchmarks.integrations.snippets import lines_changed


@pytest.mark.parametrize("name", PACKAGES)
def test_lines_are_those_of_the_documentation(name):
    found = lines_changed(name)
    assert 1 < found["added"] < 20
    assert found["removed"] <= 10
    if name in ("hf", "lightning", "torchtitan", "megatron"):
        assert found["added"] <= 3


@pytest.mark.parametrize("name", PACKAGES)
def test_every_loop_is_whole(name):
    needs = "torchdata" if name in STAND_INS else PACKAGES[name]
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    assert callable(loop_of(name).guarded)


def test_a_loop_that_is_not_exact_is_found_out(tmp_path, monkeypatch):
    loop = measure.Loop(
        guarded=LOOP.guarded, untouched=lambda folder: _nudged, interrupted=LOOP.interrupted
    )
    assert measure._skips(LOOP, tmp_path / "sound")
    assert not measure._skips(loop, tmp_path / "nudged")
    monkeypatch.setattr(measure.scenario, "NAN_AT", measure.scenario.NAN_AT + 8 * 300)
    assert not measure._rolls_back(LOOP, tmp_path / "no_nan")  # the step that was to be skipped


def _nudged(batches):
    model = LOOP.untouched(Path())(batches)
    with torch.no_grad():
        next(model.parameters()).mul_(1 + 1e-6)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "torchtitan"])
def test_the_command_prints_the_keys(name):
    if name in STAND_INS:
        pytest.importorskip("torchdata")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.integrations", "--json", "--only", name,
         "--rounds", "1", "--steps", "12"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (found,) = json.loads(done.stdout)["integrations"].values()
    assert all(found[key] is True for key in ("skip_exact", "rollback_exact", "resume_exact"))
    assert found.get("against") == STAND_INS.get(name)
    if name == "plain":
        assert found["installed"] == torch.__version__
    low, high = found["overhead_pct_range"]
    assert low <= found["overhead_pct"] <= high


@pytest.mark.slow
def test_what_goes_back_by_restarts_is_measured_too(tmp_path):
    loop = loop_of("megatron")
    assert measure._skips(loop, tmp_path / "skip")
    assert measure._rolls_back(loop, tmp_path / "back")
