"""The trials of the injection matrix: which there are, run side by side, kept, scored anew."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import torch
from rich.progress import Progress

from benchmarks.diagnosis.experiments import ranked, settled_anew
from benchmarks.diagnosis.keeping import Cases
from benchmarks.diagnosis.plans import HEALTHY, NEEDS_RANKS, key_of, levels_of
from benchmarks.diagnosis.trial import (
    causes,
    judged_or_why_not,
    looks,
    run_trial,
)
from benchmarks.recovery.results import Results
from foreshock.catalog import members
from foreshock.core.case import Case
from foreshock.core.cause import Cause, diagnose
from foreshock.core.symptom import Observed, Symptom
from foreshock.core.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which trials are asked for."""

    kinds: tuple[str, ...]
    levels: tuple[str, ...]
    sizes: tuple[str, ...]
    seeds: tuple[int, ...]

    def trials(self) -> list[tuple[str, str, str, int]]:
        """Kind, level, size and seed; healthy ones first, all faults of a seed before the next."""
        return [
            (kind, level, size, seed)
            for size in self.sizes
            for seed in self.seeds
            for kind in self.kinds
            for level in levels_of(kind)
            if level in self.levels or level == "as is"
        ]


def all_kinds() -> tuple[str, ...]:
    """Every fault that is found, and runs with which nothing is wrong."""
    return (*HEALTHY, *(name for name in members("faults") if name not in NEEDS_RANKS))


def run_missing(
    wanted: Wanted, store: Results, bar: Progress, *, jobs: int, with_experiments: bool
) -> None:
    """Make every trial that is not kept yet."""
    folder = store.path.parent
    todo = [
        one
        for one in wanted.trials()
        if _is_missing(store, key_of(*one), with_experiments=with_experiments)
    ]
    task = bar.add_task("injection matrix", total=len(todo))
    if not todo:
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread) as pool:
        running = {
            pool.submit(run_trial, *one, folder, with_experiments=with_experiments): one
            for one in todo
        }
        for done in as_completed(running):
            store.add(key_of(*running[done]), done.result())
            bar.advance(task)


def _is_missing(store: Results, key: str, *, with_experiments: bool) -> bool:
    """Whether a trial is still to be made; one that failed is made again."""
    if not store.done(key) or "failed" in store.get(key):
        return True
    told = store.get(key)
    return with_experiments and "ranking" in told and "settled" not in told


def _one_thread() -> None:
    torch.set_num_threads(1)


def look_anew(store: Results, keys: Iterable[str]) -> int:
    """Look at the cases that are kept again, with the looks and causes as they are now."""
    cases = Cases(store.path.parent / "cases")
    changed = 0
    for key in keys:
        if not cases.has(key):
            continue
        value = {name: one for name, one in store.get(key).items() if name != "unjudged"}
        case = cases.load(key)
        found = value | judged_or_why_not(case)
        if value.get("settled"):
            found["settled"] = settled_anew(value["settled"], case)
        if found != store.get(key):
            store.add(key, found)
            changed += 1
    return changed


def weighed_anew(trial: dict[str, Any]) -> dict[str, Any]:
    """A trial with its ranking by the causes as they are now, from its symptoms alone.

    Raises:
        ValueError: a cause reads more than symptoms, so that only the case itself will do.
    """
    if not trial.get("symptoms"):
        return trial
    check_tables(causes())
    case = case_of_symptoms(trial["symptoms"])
    found = {**trial, "ranking": ranked(diagnose(case, causes()))}
    if trial.get("settled"):
        found["settled"] = settled_anew(trial["settled"], case)
    return found


def check_tables(every: Sequence[Cause]) -> None:
    """Refuse causes that weigh by more than their tables.

    Raises:
        ValueError: some do.
    """
    own = [one.name for one in every if type(one).weigh is not Cause.weigh]
    if own:
        raise ValueError(f"{', '.join(own)} read more than symptoms: use --relook")


def case_of_symptoms(degrees: dict[str, float]) -> Case:
    """A case that has symptoms and no readings."""
    usual = {name: share for look in looks() for name, share in look.usual.items()}
    seen = {
        name: Observed(symptom=Symptom(name=name, degree=degree, statement=name), usual=usual[name])
        for name, degree in degrees.items()
        if name in usual
    }
    return replace(_EMPTY, symptoms=seen)


def _empty() -> Case:
    from foreshock.core.detector import Alarm, AlarmKind  # noqa: PLC0415

    alarm = Alarm(
        kind=AlarmKind.SPIKE, detector="", series="loss/global", step=1, onset_step=1, value=0.0
    )
    return Case(timeline=Timeline(["loss/global"], capacity=1), alarms=(alarm,))


_EMPTY = _empty()
