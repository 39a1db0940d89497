"""What the trials of the fault matrix come to."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.recovery.anchors import ANCHOR_STEP, END_STEP
from benchmarks.recovery.matrix_account import (
    Healthy,
    healthy_ends,
    shows_harm,
    tokens_lost,
    why_not_recovered,
)
from benchmarks.recovery.matrix_faults import FAULTS
from benchmarks.recovery.matrix_program import BATCH_SIZE, CONTEXT

PREFIX: Final = "matrix"
"""Of the keys of all its results."""


def figures(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of all trials that are kept, by their keys."""
    twins: dict[int, list[float]] = {}
    for key, end in _under(kept, "twin").items():
        twins.setdefault(int(key.split("/")[0]), []).append(end)
    found: dict[str, Any] = {"healthy": _healthy(_under(kept, "healthy"))}
    if not any(len(one) > 1 for one in twins.values()):
        return found
    ends = healthy_ends(twins)
    trials: dict[str, list[tuple[str, Any]]] = {kind: [] for kind in FAULTS}
    for key, trial in _under(kept, "trial").items():
        if trial["anchor"] in ends.bound:
            trials[key.split("/")[0]].append((key, trial))
    every = [one for some in trials.values() for one in some]
    return {
        "matrix": {
            "steps": [ANCHOR_STEP, END_STEP],
            "batch_size": BATCH_SIZE,
            "tokens_per_sample": CONTEXT,
            "anchors": len(twins),
            "twin_spread": round(ends.spread, 5),
            "allowed_excess": {
                str(seed): round(ends.bound[seed] - ends.mean[seed], 5) for seed in sorted(twins)
            },
        },
        "recovered": {
            **{kind: _recovered(some, ends) for kind, some in trials.items()},
            "all": _share(every, ends),
            "failures": {
                key: reasons for key, trial in every if (reasons := why_not_recovered(trial, ends))
            },
        },
        "unguarded": _unguarded_figures(_under(kept, "unguarded"), ends),
        "tokens_lost_median": {
            **{kind: _tokens(some, ends) for kind, some in trials.items()},
            "all": _tokens(every, ends),
        },
        **found,
    }


def _under(kept: Mapping[str, Any], part: str) -> dict[str, Any]:
    prefix = f"{PREFIX}/{part}/"
    return {key.removeprefix(prefix): v for key, v in kept.items() if key.startswith(prefix)}


def _share(some: Sequence[tuple[str, Any]], ends: Healthy) -> dict[str, Any]:
    well = [trial for _, trial in some if not why_not_recovered(trial, ends)]
    return {
        "trials": len(some),
        "recovered": len(well),
        "halted": sum(bool(trial["halted"]) for _, trial in some),
        "without_incident": sum(not trial["incidents"] for _, trial in some),
    }


def _recovered(some: Sequence[tuple[str, Any]], ends: Healthy) -> dict[str, Any]:
    """How the trials of one fault ended, how each was resolved, and what was made of it."""
    incidents = [one for _, trial in some for one in trial["incidents"]]
    last = Counter(one["rungs"][-1] if one["rungs"] else "none" for one in incidents)
    causes = Counter(trial["incidents"][0]["cause"] for _, trial in some if trial["incidents"])
    return {
        **_share(some, ends),
        "resolved_by": dict(last.most_common()),
        "first_diagnosis": dict(causes.most_common()),
        "incidents": len(incidents),
        "rollbacks": sum(step is not None for one in incidents for step in one["targets"]),
        "wasted_steps": sorted(t["recomputed_steps"] + t["skipped_steps"] for _, t in some),
        "excess": sorted(
            round(trial["held_out"] - ends.mean[trial["anchor"]], 4)
            for _, trial in some
            if trial["held_out"] is not None
        ),
    }


def _tokens(some: Sequence[tuple[str, Any]], ends: Healthy) -> dict[str, Any]:
    well = [trial for _, trial in some if not why_not_recovered(trial, ends)]
    return tokens_lost(well, batch_size=BATCH_SIZE, tokens=CONTEXT)


def _unguarded_figures(kept: Mapping[str, Any], ends: Healthy) -> dict[str, Any]:
    """Of the same faults without the Guard, how many ends no healthy run has."""
    found: dict[str, list[bool]] = {}
    for key, one in kept.items():
        if one["anchor"] in ends.bound:
            harm = shows_harm(one["held_out"], ends, one["anchor"])
            found.setdefault(key.split("/")[0], []).append(harm)
    return {kind: {"runs": len(some), "hurt": sum(some)} for kind, some in found.items()}


def _healthy(runs: Mapping[str, Any]) -> dict[str, Any]:
    some = list(runs.values())
    hurt = {
        key: one["plans"] or one["halted"] or "did not end or is not finite"
        for key, one in runs.items()
        if one["plans"] or not one["ended"] or not one["finite"]
    }
    return {
        "runs": len(some),
        "runs_with_a_rollback": sum(bool(one["rollbacks"]) for one in some),
        "rollbacks": sum(one["rollbacks"] for one in some),
        "incidents": sum(one["incidents"] for one in some),
        "skipped_steps": sum(one["skipped_steps"] for one in some),
        "halted": sum(bool(one["halted"]) for one in some),
        "steps": sum(one["steps"] for one in some),
        "alarmed_steps": sum(one["alarmed_steps"] for one in some),
        "most_outlier_steps": max((one["outlier_steps"] for one in some), default=0),
        "acted_on": hurt,
    }
