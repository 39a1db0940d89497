"""What the trials that are kept come to."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.diagnosis.baselines import baselines
from benchmarks.diagnosis.plans import BENIGN, CALIBRATION_SEEDS, NEEDS_RANKS
from benchmarks.diagnosis.scoring import (
    Judged,
    by,
    confusion,
    macro,
    reliability,
    shares,
)
from benchmarks.diagnosis.watched import excess

Trials = Sequence[Mapping[str, Any]]


def figures(kept: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of all trials; those that count are of `evaluation`.

    Tables may have been calibrated on the first five seeds of the small size, so that those
    are told apart; the large size and every other seed were not looked at for it.
    """
    every = list(kept)
    trials = [one for one in every if "refused" not in one and "failed" not in one]
    refused = sorted({one["kind"] for one in every if "refused" in one})
    failed = sorted({one["kind"] for one in every if "failed" in one})
    parts = {
        "evaluation": [one for one in trials if not is_calibration(one)],
        "evaluation_small": [
            one for one in trials if not is_calibration(one) and one["size"] == "small"
        ],
        "evaluation_large": [one for one in trials if one["size"] != "small"],
        "calibration": [one for one in trials if is_calibration(one)],
    }
    return {
        "trials": len(trials),
        "refused": refused,
        "failed": failed,
        "left_out": sorted(NEEDS_RANKS),
        "unjudged": sum("unjudged" in one for one in trials),
        **{name: _part(some, trials) for name, some in parts.items() if some},
    }


def is_calibration(trial: Mapping[str, Any]) -> bool:
    """Whether tables may have been calibrated on it."""
    return trial["size"] == "small" and trial["seed"] in CALIBRATION_SEEDS


def _part(trials: Trials, every: Trials) -> dict[str, Any]:
    told = [one for one in trials if "unjudged" not in one]
    faulty = [one for one in told if one["cause"] != BENIGN]
    healthy = [one for one in told if one["cause"] == BENIGN]
    found = {"signals": _judgement(faulty, "ranking")}
    if settled := [one for one in faulty if "ranking" in (one.get("settled") or {})]:
        found["experiments"] = _judgement(settled, "settled")
        found["signals_of_the_same"] = _judgement(settled, "ranking", brief=True)
        steps = [one["settled"]["num_steps"] for one in settled]
        found["experiments"]["not_settled"] = sum(
            "failed" in (one.get("settled") or {}) for one in faulty
        )
        found["experiments"]["mean_steps"] = round(sum(steps) / len(steps), 1)
    return {
        **found,
        "baselines": baselines((one["cause"], one["path"]) for one in faulty if one.get("path")),
        "healthy": _healthy(healthy),
        "excess_loss": _excess(faulty, every),
    }


def _judgement(trials: Trials, what: str, *, brief: bool = False) -> dict[str, Any]:
    rows = [(one, judged_of(one, what)) for one in trials]
    by_cause = by((one["cause"], judged) for one, judged in rows)
    found = {
        **shares([judged for _, judged in rows]),
        "top1_mean_over_causes": macro(by_cause, "top1"),
        "by_seen": by((str(one["seen_by"]), judged) for one, judged in rows),
    }
    if brief:
        return found
    return {
        **found,
        "reliability": reliability(judged for _, judged in rows),
        "by_cause": by_cause,
        "by_fault": by((f"{one['kind']}/{one['level']}", judged) for one, judged in rows),
        "confusion": confusion((one["cause"], judged) for one, judged in rows),
    }


def judged_of(trial: Mapping[str, Any], what: str = "ranking") -> Judged:
    """A trial's diagnosis beside the truth; `what` is "ranking" or "settled"."""
    told = trial.get(what)
    if what == "settled" and told is not None:
        told = told.get("ranking")
    ranking = None if told is None else [(cause, p) for cause, p in told]
    return Judged(right=frozenset({trial["cause"]}), ranking=ranking)


def _healthy(trials: Trials) -> dict[str, Any]:
    """Of each kind of healthy run: nothing seen, called benign, called anything else."""
    found: dict[str, Any] = {}
    for kind in sorted({one["kind"] for one in trials}):
        mine = [one for one in trials if one["kind"] == kind]
        first = [judged_of(one).first for one in mine]
        unseen = sum(one["seen_by"] is None for one in mine)
        benign = sum(one == BENIGN for one in first)
        found[kind] = {
            "runs": len(mine),
            "unseen": unseen,
            "benign": benign,
            "share_left_alone": round((unseen + benign) / len(mine), 4),
            "would_act": sum(one["seen_by"] in ("action", "harm") for one in mine),
            "wrongly_confident": sum(judged_of(one).is_wrongly_confident for one in mine),
            "others": sorted({one for one in first if one not in (BENIGN, "(unseen)")}),
        }
    return found


def _excess(trials: Trials, every: Trials) -> dict[str, Any]:
    """Median excess loss from the strike on, over the healthy fork of the same data."""
    healthy = {
        (one["anchor"], one["seed"]): _losses(one)
        for one in every
        if one["kind"] in ("healthy", "healthy_fp16")
    }
    found: dict[str, list[float]] = {}
    for one in trials:
        twin = healthy.get((one["anchor"], one["seed"]))
        value = excess(_losses(one), twin, one["strike_step"]) if twin else None
        if value is not None:
            found.setdefault(f"{one['kind']}/{one['level']}", []).append(value)
    return {name: round(sorted(some)[len(some) // 2], 4) for name, some in sorted(found.items())}


def _losses(trial: Mapping[str, Any]) -> dict[int, float]:
    first = trial["first_step"]
    return {step: loss for step, loss in enumerate(trial["losses"], first) if loss is not None}
