"""Figures of the trials that are kept, and what there is to say of each failure."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from benchmarks.recovery.corrupt import ACCEPTED, CRASHED
from benchmarks.recovery.results import Results
from benchmarks.recovery.trials import GROUPS, KILLS

_MOST_FAILURES = 50


def figures(store: Results) -> dict[str, Any]:
    """Everything that was counted and timed; see `benchmarks.recovery.__main__` for the keys."""
    found: dict[str, Any] = {}
    found |= kill_figures(store.values("kill/"), store.values("unavailable/"))
    found |= corrupt_figures(store.values("corrupt/"))
    found |= full_figures(store.values("disk_full/"))
    for key in ("rollback_s", "snapshot_stall_pct_of_step"):
        if timed := store.values(f"{key}/"):
            found[key] = {name.rpartition("/")[2]: value for name, value in timed.items()}
    dates = store.dates()
    return found | {"trials_made": {"first": dates[0], "last": dates[1]} if dates else None}


def kill_figures(
    trials: Mapping[str, Mapping[str, Any]], unavailable: Mapping[str, str]
) -> dict[str, Any]:
    """Trials with kills: how many, how many lost something, how many ended with the same bits.

    A trial that no kill struck is not counted.
    """
    struck = {key: one for key, one in trials.items() if one.get("kills") or one["lost"]}
    if not struck and not unavailable:
        return {}
    by_group: dict[str, Any] = {}
    for name in KILLS:
        group = [one for key, one in struck.items() if key.split("/")[1] == name]
        if group:
            by_group[name] = _kills(group)
    for name in GROUPS:
        if error := unavailable.get(f"unavailable/{name}"):
            by_group[name] = f"not available: {error}"
    places = Counter(kill["place"] for one in struck.values() for kill in one.get("kills", ()))
    whole = _kills(list(struck.values()))
    return {
        "kill_trials": whole["trials"],
        "kill_lost": whole["lost"],
        "kill_bitexact": whole["bitexact"],
        "kills": whole["kills"],
        "kills_by_place": dict(places.most_common()),
        "kill_by_ranks": by_group,
        "kill_failures": _failures(struck),
    }


def _kills(trials: list[Mapping[str, Any]]) -> dict[str, int]:
    return {
        "trials": len(trials),
        "kills": sum(len(one.get("kills", ())) for one in trials),
        "lost": sum(bool(one["lost"]) for one in trials),
        "bitexact": sum(bool(one["bitexact"]) for one in trials),
    }


def corrupt_figures(trials: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Damaged snapshots: how many, and of how many a restore gave what was never captured."""
    if not trials:
        return {}
    outcomes: dict[str, Counter[str]] = {}
    for key, one in trials.items():
        outcomes.setdefault(key.split("/")[1], Counter())[one["outcome"]] += 1
    whole = Counter(one["outcome"] for one in trials.values())
    wrong = (ACCEPTED, CRASHED)
    return {
        "corrupt_trials": len(trials),
        "corrupt_accepted": whole[ACCEPTED],
        "corrupt_crashed": whole[CRASHED],
        "corrupt_outcomes": {kind: dict(counts) for kind, counts in outcomes.items()},
        "corrupt_damage": dict(
            Counter(str(one.get("damage", "")).split(":")[0] for one in trials.values())
        ),
        "corrupt_failures": {key: one for key, one in trials.items() if one["outcome"] in wrong},
    }


def full_figures(trials: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Full disks: how many, and how many trainings stopped, or lost a decision, or went astray.

    A trial in which the disk was never full is not counted.
    """
    met = {key: one for key, one in trials.items() if one.get("full_steps") or one["lost"]}
    if not trials:
        return {}
    failed = [one for one in met.values() if one["lost"] or not one["bitexact"]]
    return {
        "disk_full_trials": len(met),
        "disk_full_failed": len(failed),
        "disk_full_died_meanwhile": sum(bool(one.get("died")) for one in met.values()),
        "disk_full_steps": sum(int(one.get("full_steps", 0)) for one in met.values()),
        "disk_full_steps_without_provenance": sum(
            int(one.get("dropped_provenance", 0)) for one in met.values()
        ),
        "disk_full_failures": _failures(met),
    }


def _failures(trials: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    wrong = {key: one for key, one in trials.items() if one["lost"] or not one["bitexact"]}
    return dict(list(wrong.items())[:_MOST_FAILURES])
