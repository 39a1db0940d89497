"""BLOOM-176B: what `foreshock diagnose` says of the numbers around iteration 31,219."""

import json
import math
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.case_studies.running import top_three
from foreshock.cli.diagnose import to_json
from foreshock.inspection.inspect import inspect_log
from foreshock.logs import read_log

LOG: Final = Path(__file__).parents[2] / "docs/examples/bloom-176b.jsonl"
"""Ten iterations: those whose numbers we have."""
_FIRST, _LAST = 30950, 31449


def study(folder: Path) -> dict[str, Any]:
    """The inspection of the whole excerpt, and of what was known at each iteration of it."""
    rows = LOG.read_text(encoding="utf-8").splitlines()
    known = _known(folder, rows)
    long = folder / "long.jsonl"
    long.write_text(filled(rows), encoding="utf-8")
    return {"log": inspected(LOG), "known_at": known, "in_a_long_log": inspected(long)}


def filled(rows: list[str]) -> str:
    """The ten iterations among 500 of our own making, calm ones, so that live rules are warm.

    Around them the loss is 2.21 with a standard deviation of 0.012, the gradient norm 0.2 with
    one of a tenth; between iterations 31,222 and 31,250 both fall back exponentially.
    """
    rng = np.random.default_rng(0)
    known = {json.loads(row)["step"]: row for row in rows}
    told: list[str] = []
    for step in range(_FIRST, _LAST + 1):
        loss, norm = 2.21 + 0.012 * rng.normal(), 0.2 * math.exp(0.1 * rng.normal())
        if 31222 < step < 31250:
            loss, norm = (
                2.21 + 0.5 * math.exp((31222 - step) / 6),
                0.3 + 300 * math.exp(31222 - step),
            )
        made = {"step": step, "loss": round(loss, 4), "grad_norm": round(norm, 4)}
        told.append(known.get(step, json.dumps(made)))
    return "\n".join(told) + "\n"


def inspected(path: Path) -> dict[str, Any]:
    """The verdict, the worst episode and the likeliest causes."""
    (found,) = to_json([inspect_log(read_log(path))], [], None)["logs"]
    episodes = [
        {
            key: one[key]
            for key in (
                "kind", "onset_step", "alarm_step", "causal_onset_step", "peak_step", "end_step",
                "first_mover", "lead_to_loss_move_steps", "lead_to_loss_peak_steps", "steps_lost",
            )
        }
        for one in found["episodes"]
        if one["kind"] != "benign_outlier"
    ]  # fmt: skip
    (run,) = found["runs"]
    diagnosis = run["diagnosis"]
    return {
        "class": found["class"],
        "verdict": found["verdict"],
        "episodes": episodes,
        "advice": run["advice"],
        "diagnosis": None if diagnosis is None else top_three(diagnosis["candidates"]),
        "evidence": []
        if diagnosis is None
        else [
            [one["cause"], fact["statement"], round(fact["weight"], 2)]
            for one in diagnosis["candidates"][:3]
            for fact in one["evidence"]
        ],
        "warnings": run["warnings"],
    }


def _known(folder: Path, rows: list[str]) -> list[list[Any]]:
    """By the last iteration in the log: the class, and the onset, if any."""
    found: list[list[Any]] = []
    folder.mkdir(parents=True, exist_ok=True)
    for end in range(3, len(rows)):
        path = folder / "excerpt.jsonl"
        path.write_text("\n".join(rows[:end]) + "\n", encoding="utf-8")
        one = inspected(path)
        onset = one["episodes"][0]["onset_step"] if one["episodes"] else None
        found.append([json.loads(rows[end - 1])["step"], one["class"], onset])
    return found
