"""Detection on synthetic faults: our detectors against the rules of other tools.

    python -m benchmarks.synthetic [--json FILE] [--seeds 50] [--corpus RESIDUALS] [--quick]

Every rule is first tuned so that on clean traces it raises one alarm in 10,000 steps, the same
for all (see `tune_fairly`); then each column of the matrix is one fault in `--seeds` runs,
half of them flat and half falling. An alarm is a stretch of flagged steps, and each further
100 flagged steps in a row are one more: who is alarmed for ever has not become quiet.

A column has a detection rate (a flag within the fault's window, by a rule that was not
alarmed when the fault began), the median delay of those found, and the flagged steps a run
after it has recovered. The score is the mean rate over all columns but `nothing`.
"""

import argparse
import json
import math
import os
import platform
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

import foreshock
from benchmarks.peers.peer import Flags, Trace
from benchmarks.synthetic_rules import Family, Rule, Union, all_rules
from benchmarks.synthetic_tables import show
from benchmarks.synthetic_traces import (
    FAULT_STEP,
    NUM_STEPS,
    TOLERANCE_STEPS,
    Case,
    Noise,
    Residuals,
    around_median,
    cases,
    clean,
    load_residuals,
)

__all__ = ["Residuals", "around_median", "load_residuals", "run"]

NOISES = ("gauss", "t3", "real")
LASTING_STEPS = 100
"""Flagged steps in a row after which a lasting alarm counts once more."""

FOUND_AT_ALL = 0.1
"""Below this rate a peer's finds are chance, and no measure of ours."""

_MOST_DOUBLINGS = 14
_HALVINGS = 9


def num_alarms(flags: Flags) -> int:
    """Stretches of flagged steps, each counted again for every further 100 steps."""
    total = 0
    for run in flags.T:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], run.view(np.int8), [0]])))
        lengths = edges[1::2] - edges[::2]
        total += int((1 + (lengths - 1) // LASTING_STEPS).sum())
    return total


def tune(rule: Rule, prepared: Any, most_alarms: float) -> tuple[float, bool]:
    """The smallest factor at which the rule raises at most so many alarms, by bisection.

    Returns:
        The factor, and whether the rule can be brought there: it is 1 where it stays too
        loud however dull (then it is compared with nobody), and the keenest that was tried
        where it stays too quiet.
    """

    def is_quiet(power: float) -> bool:
        scaled = rule.scaled(2.0**power)
        return scaled is None or num_alarms(scaled.decide(prepared)) <= most_alarms

    low = high = 0.0
    if is_quiet(0.0):
        while is_quiet(low - 1):
            low -= 1
            if low <= -_MOST_DOUBLINGS:
                return 2.0**low, False
        high, low = low, low - 1
    else:
        while not is_quiet(high + 1):
            high += 1
            if high >= _MOST_DOUBLINGS:
                return 1.0, False
        low, high = high, high + 1
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_quiet(middle) else (middle, high)
    return 2.0**high, True


def tune_fairly(rule: Rule, prepared: Any, most_alarms: float) -> tuple[Rule, float, bool]:
    """A rule at the wanted number of alarms, whatever it consists of.

    A rule of one part has its one threshold scaled. One of several (a rule on two signals, a
    family of rules) gives each part an equal share of the alarms; a part that stays below its
    share as it comes is left alone, and what it leaves goes to the others, if any of them
    is above. Then all are scaled together so that the whole raises the wanted number.

    Returns:
        The tuned rule, the (last common) factor, and whether it could be brought there.
    """
    parts = rule.split()
    if len(parts) == 1:
        factor, reached = tune(rule, prepared, most_alarms)
        return rule.scaled(factor) or rule, factor, reached
    counts = [num_alarms(part.decide(prepared)) for part in parts]
    share, loud = most_alarms / len(parts), set(range(len(parts)))
    while True:
        calm = {place for place in loud if counts[place] <= share}
        if not calm or calm == loud:
            break
        loud -= calm
        rest = most_alarms - sum(counts[place] for place in set(range(len(parts))) - loud)
        share = max(rest, 0.0) / len(loud)
    chosen: list[Rule] = []
    for place, part in enumerate(parts):
        factor = tune(part, prepared, share)[0] if place in loud else 1.0
        chosen.append(part.scaled(factor) or part)
    whole = Union(parts=tuple(chosen), name=rule.name, is_ours=rule.is_ours)
    factor, reached = tune(whole, prepared, most_alarms)
    return whole.scaled(factor) or whole, factor, reached


def score(case: Case, flags: Flags) -> dict[str, Any]:
    """How a column went, from its flags `[T, seeds]`."""
    start = FAULT_STEP + case.begins
    within = flags[start : start + case.within]
    found = within.any(axis=0) & ~flags[FAULT_STEP - 1]
    result: dict[str, Any] = {
        "rate": float(found.mean()),
        "rate_flat": float(found[::2].mean()),
        "rate_falling": float(found[1::2].mean()) if len(found) > 1 else None,
        "delay": float(np.median(within.argmax(axis=0)[found])) if found.any() else None,
    }
    if case.lasts:
        recovered = FAULT_STEP + case.lasts + TOLERANCE_STEPS
        result["flags_after"] = float(flags[recovered:].sum(axis=0).mean())
    return result


def matrix(
    noise: Noise, seeds: int, columns: Iterable[Case], num_steps: int = NUM_STEPS
) -> tuple[Trace, Trace]:
    """Every column's traces side by side, `[T, columns x seeds]`; seeds are the same in each."""
    pairs = []
    base = clean(noise, num_steps, range(1000, 1000 + seeds))
    for case in columns:
        loss, grad_norm = (values.copy() for values in base)
        case.change(loss, grad_norm)
        pairs.append((loss, grad_norm))
    losses, norms = zip(*pairs, strict=True)
    return np.concatenate(losses, axis=1), np.concatenate(norms, axis=1)


def judge(
    rule: Rule,
    calm: tuple[Trace, Trace],
    faulty: tuple[Trace, Trace],
    columns: dict[str, Case],
    target: float,
) -> dict[str, Any]:
    """One rule under one noise: tuned, and as it comes."""
    prepared, num_steps = rule.prepare(*calm), calm[0].size
    tuned, factor, reached = tune_fairly(rule, prepared, num_steps / target)
    result: dict[str, Any] = {"is_ours": rule.is_ours, "factor": factor, "reached": reached}
    for key, version in (("arl", tuned), ("arl_default", rule)):
        alarms = num_alarms(version.decide(prepared))
        result[key] = num_steps / alarms if alarms else None
    if isinstance(rule, Family) and isinstance(tuned, Union):
        by_part = {"tuned": tuned.flags_by_part, "default": rule.flags_by_detector}
        for key, flags_of in by_part.items():
            result[f"clean_alarms_{key}"] = {
                name: num_alarms(flags) for name, flags in flags_of(prepared).items()
            }
    prepared = rule.prepare(*faulty)
    for key, version in (("columns", tuned), ("columns_default", rule)):
        result[key] = by_column(version.decide(prepared), columns)
        rates = [found["rate"] for name, found in result[key].items() if name != "nothing"]
        result[key.replace("columns", "score")] = float(np.mean(rates))
    delays = [found["delay"] for found in result["columns"].values() if found["delay"] is not None]
    result["mean_delay"] = float(np.mean(delays)) if delays else None
    after = [found["flags_after"] for found in result["columns"].values() if "flags_after" in found]
    result["mean_flags_after"] = float(np.mean(after))
    if isinstance(rule, Family) and isinstance(tuned, Union):
        for name, flags in tuned.flags_by_part(prepared).items():
            for column, found in by_column(flags, columns).items():
                if found["rate"]:
                    by = result["columns"][column].setdefault("by_detector", {})
                    by[name] = {"rate": found["rate"], "delay": found["delay"]}
    return result


def by_column(flags: Flags, columns: dict[str, Case]) -> dict[str, dict[str, Any]]:
    """The score of each column, from the flags of all of them side by side."""
    parts = np.split(flags, len(columns), axis=1)
    return {
        case.name: score(case, part) for case, part in zip(columns.values(), parts, strict=True)
    }


def is_loud(found: dict[str, Any]) -> bool:
    """Whether a rule raises more false alarms than the others, whatever its threshold."""
    return found["factor"] == 1.0 and not found["reached"]


def compare(rules: dict[str, dict[str, Any]], ours: str = "foreshock") -> dict[str, Any]:
    """For each column the best peer (by rate, then by delay) and how we stand to it.

    Worse is a rate below 0.9 of that peer's, slower a delay above 1.5 of its plus 2 steps.
    """
    columns: dict[str, Any] = {}
    worse, slower = [], []
    peers = {
        name: found for name, found in rules.items() if not found["is_ours"] and not is_loud(found)
    }
    for column in rules[ours]["columns"] if peers else ():
        us = rules[ours]["columns"][column]

        def merit(name: str, column: str = column) -> tuple[float, float]:
            found = peers[name]["columns"][column]
            return found["rate"], -(math.inf if found["delay"] is None else found["delay"])

        best = max(peers, key=merit)
        them = peers[best]["columns"][column]
        columns[column] = {
            "best_peer": best,
            "best_rate": them["rate"],
            "best_delay": them["delay"],
            "rate": us["rate"],
            "delay": us["delay"],
            "ratio": us["rate"] / them["rate"] if them["rate"] else None,
        }
        if column == "nothing" or them["rate"] < FOUND_AT_ALL:
            continue
        if us["rate"] < 0.9 * them["rate"]:
            worse.append(column)
        elif them["rate"] >= 0.5 and us["delay"] > 1.5 * them["delay"] + 2:
            slower.append(column)
    return {
        "columns": columns,
        "not_comparable": [name for name, found in rules.items() if is_loud(found)],
        "columns_worse_than_best_peer_by_10_percent": worse,
        "columns_slower_than_best_peer": slower,
    }


def run(
    *,
    seeds: int = 50,
    corpus: Path | Trace | Residuals | None = None,
    noises: Iterable[str] = NOISES,
    rules: dict[str, Rule] | None = None,
    clean_runs: int = 20,
    clean_steps: int = 10_000,
    target: float = 10_000,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> dict[str, Any]:
    """The whole comparison as plain values, ready for JSON.

    Args:
        seeds: runs a column; the even half is flat, the odd half falls slowly.
        corpus: residuals of real series (an array: of losses), or where they lie.
        noises: of `gauss`, `t3`, `real`.
        rules: who takes part, by name; all by default. `foreshock` must be there.
        clean_runs: clean traces that thresholds are tuned on; half of them fall.
        clean_steps: length of each.
        target: steps between two alarms on those.
        progress: told how many of how many are done, and who is next.
    """
    residuals = load_residuals(corpus) if isinstance(corpus, Path) else corpus
    if isinstance(residuals, np.ndarray):
        residuals = Residuals(loss=residuals)
    rules, columns, chosen = rules or all_rules(), cases(), tuple(noises)
    found: dict[str, Any] = {}
    for turn, kind in enumerate(chosen):
        noise = Noise(kind, residuals if kind == "real" else None)
        calm = clean(noise, clean_steps, range(clean_runs))
        faulty = matrix(noise, seeds, columns.values())
        judged: dict[str, dict[str, Any]] = {}
        for place, (name, rule) in enumerate(rules.items()):
            progress(turn * len(rules) + place, len(chosen) * len(rules), f"{kind}: {name}")
            judged[name] = judge(rule, calm, faulty, columns, target)
        found[kind] = {"label": noise.label, "rules": judged, **compare(judged)}
    progress(len(chosen) * len(rules), len(chosen) * len(rules), "done")
    overall = {
        name: {
            "score": float(np.mean([part["rules"][name]["score"] for part in found.values()])),
            "score_default": float(
                np.mean([part["rules"][name]["score_default"] for part in found.values()])
            ),
        }
        for name in rules
    }
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "foreshock": foreshock.__version__,
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "accelerator": None},
        "settings": {
            "seeds": seeds,
            "target_arl_steps": target,
            "clean_steps": clean_runs * clean_steps,
            "num_steps": NUM_STEPS,
            "fault_step": FAULT_STEP,
        },
        "overall": dict(sorted(overall.items(), key=lambda item: -item[1]["score"])),
        "noises": found,
        "columns_worse_than_best_peer_by_10_percent": {
            kind: part["columns_worse_than_best_peer_by_10_percent"] for kind, part in found.items()
        },
    }


QUICK: dict[str, Any] = {"seeds": 4, "noises": ("t3",), "clean_runs": 4, "clean_steps": 2500}
"""A smoke run: too few seeds to mean anything."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, default=None, help="where the numbers go")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--corpus", type=Path, default=None, help="residuals: a file or a folder")
    parser.add_argument("--quick", action="store_true", help="a few seeds of one noise")
    options = parser.parse_args()
    settings = {
        "seeds": options.seeds,
        "corpus": options.corpus,
        **(QUICK if options.quick else {}),
    }
    with Progress(transient=True) as bar:
        task = bar.add_task("synthetic", total=None)
        result = run(
            **settings,
            progress=lambda done, total, name: bar.update(
                task, completed=done, total=total, description=name
            ),
        )
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


if __name__ == "__main__":
    main()
