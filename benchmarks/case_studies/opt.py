"""OPT-175B: a rate that is too high under a loss scale, and which snapshot is gone back to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner

from benchmarks.case_studies.running import STRIKE_STEP, Ran, Strike, level, run, settings, told
from foreshock.cli.main import cli

OVERFLOW_AFTER: Final = 25
"""Steps for which the rate is too high before gradients leave the range of half precision."""
_LAST, _SEED, _OLDEST = 330, 4, 180
_SERIES = ("loss_scale/global", "activation_norm/norm", "grad_norm/global", "loss/global")
_FIGURES = ("loss_scale/global", "activation_norm/norm", "activation_norm/norm:growth")


def study(folder: Path) -> dict[str, Any]:
    """Two runs: a rate that is far too high, and one less so until the loss scale falls."""
    far = Strike(step=STRIKE_STEP, fault="sustained_lr", settings={"intensity": 1.0})
    less = Strike(step=STRIKE_STEP, fault="sustained_lr", settings={"intensity": 0.5})
    overflow = Strike(
        step=STRIKE_STEP + OVERFLOW_AFTER, fault="half_gradient", settings={"intensity": 1.0}
    )
    of = settings(_SEED, precision="fp16")
    rate = run(folder / "rate", of, _LAST, [far])
    scale = run(folder / "scale", of, _LAST, [less, overflow])
    return {
        "rate": {**told(rate), "snapshots": _listed(rate)},
        "scale": {**told(scale), "levels": _levels(scale), "snapshots": _labels(scale)},
    }


def _levels(ran: Ran) -> dict[str, dict[str, float | None]]:
    spans = {
        "before": (STRIKE_STEP - 30, STRIKE_STEP - 1),
        "rate_too_high": (STRIKE_STEP + 5, STRIKE_STEP + OVERFLOW_AFTER - 1),
        "overflow": (STRIKE_STEP + OVERFLOW_AFTER + 6, STRIKE_STEP + OVERFLOW_AFTER + 6),
    }
    return {
        name: {series: level(ran, series, *span) for series in _SERIES}
        for name, span in spans.items()
    }


def _listed(ran: Ran) -> list[dict[str, Any]]:
    """What `foreshock snapshots RUN` says, newest first, of those before the last incident."""
    onset = str(STRIKE_STEP)
    found = CliRunner().invoke(cli, ["snapshots", str(ran.run_dir), "--onset", onset, "--json"])
    return [
        {"chosen": one["chosen"], "why": one["why"], **_label(one)}
        for one in json.loads(found.stdout)["snapshots"]
        if _OLDEST <= one["step"] <= STRIKE_STEP + 2 * OVERFLOW_AFTER
    ]


def _labels(ran: Ran) -> list[dict[str, Any]]:
    """The labels of the snapshots of the first attempt, as the journal keeps them."""
    return [
        _label(one["snapshot"])
        for one in ran.guard.records
        if one["kind"] == "snapshot" and one["attempt"] == 1 and one["step"] >= _OLDEST
    ]


def _label(one: Mapping[str, Any]) -> dict[str, Any]:
    health = one["health"]
    return {
        "step": one["step"],
        "concerns": health["concerns"],
        "doubts": health.get("doubts", []),
        "figures": {
            name: float(f"{health['figures'][name]:.5g}")
            for name in _FIGURES
            if name in health["figures"]
        },
    }
