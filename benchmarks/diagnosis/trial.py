"""One trial of the injection matrix: a fork, a fault, the case of it, and what is said of it."""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.diagnosis.experiments import ranked, settled
from benchmarks.diagnosis.keeping import Cases
from benchmarks.diagnosis.plans import Plan, plan_of
from benchmarks.diagnosis.runs import ANCHORS, Anchor, anchor
from benchmarks.diagnosis.watched import Watched
from foreshock.catalog import members
from foreshock.core.case import Case
from foreshock.core.cause import Cause, decision_path, diagnose
from foreshock.core.detector import Alarm
from foreshock.core.errors import ConfigError, ProgramError
from foreshock.core.symptom import Look, observe

HORIZON_STEPS: Final = 120
"""Steps after the strike for which a run is watched, unless a Guard would act before."""
_TOGETHER_STEPS = 20  # advisories that follow each other closer than that belong together


def run_trial(
    kind: str, level: str, size: str, seed: int, folder: Path, *, with_experiments: bool = False
) -> dict[str, Any]:
    """Make a trial, and keep its case; what came of it, strict JSON.

    The case is that of the step at which a Guard would first act. If it never would: that of
    the episode with the most alarmed steps at the end; without any, that of the last advisory
    alarms; without any of these nothing was seen.

    Args:
        kind: of `plans.Plan`; likewise `level`, `size` and `seed`.
        folder: where anchors and cases are kept.
        with_experiments: whether experiments are made on the case as well.
    """
    plan = plan_of(kind, level, size, seed)
    refused = ""
    for variant in plan.variants:
        one = anchor(size, variant, seed % ANCHORS, folder / "anchors")
        watched = Watched(one, plan, keeps=with_experiments)
        try:
            return _trial(plan, one, watched, Cases(folder / "cases"), with_experiments)
        except ConfigError as error:
            refused = f"{variant}: {error}"
        except ProgramError as error:
            return {**_about(plan), "failed": str(error)[:300]}
        finally:
            watched.close()
    return {**_about(plan), "refused": refused}


def _trial(
    plan: Plan, one: Anchor, watched: Watched, cases: Cases, with_experiments: bool
) -> dict[str, Any]:
    case, seen_by = _watch(plan, watched)
    losses = [
        round(loss, 5) if math.isfinite(loss) else None
        for _, loss in sorted(watched.losses.items())
    ]
    told = {
        **_about(plan),
        "variant": one.variant,
        "anchor": one.name,
        "done_to_it": watched.said,
        "changed": [f"{one.kind} {one.name}" for one in watched.changes],
        "first_step": min(watched.losses),
        "losses": losses,
        "seen_by": seen_by,
    }
    if case is None:
        return told
    cases.keep(plan.key, case, one.name)
    told |= judged_or_why_not(case)
    if with_experiments:
        # A replay tells episodes by their alarms; advisory ones open none, and are not in it.
        untold = {"ranking": told.get("ranking"), "results": [], "not_made": [], "num_steps": 0}
        is_episode = seen_by != "advisories"
        told["settled"] = settled(watched, cases.load(plan.key)) if is_episode else untold
    return told


def _watch(plan: Plan, watched: Watched) -> tuple[Case | None, str | None]:
    """The case and how it came about: "action", "harm", "episode", "advisories" or None."""
    worst: list[Alarm] = []
    while watched.step < plan.step + HORIZON_STEPS:
        watched.advance()
        episode = watched.monitor.episode
        if watched.step < plan.step or not episode or episode[-1].step < plan.step:
            continue
        if watched.would_act():
            return watched.case(episode), "action"
        if harm := watched.harm():
            return watched.case(episode, harm=harm), "harm"
        if _num_steps(episode) > _num_steps(worst) or (worst and episode[0] is worst[0]):
            worst = list(episode)
    if worst:
        return watched.case(worst), "episode"
    if advisories := _last_together([a for a in watched.advisories if a.step >= plan.step]):
        return watched.case(advisories), "advisories"
    return None, None


def judged_or_why_not(case: Case) -> dict[str, Any]:
    """The same as `judged`; what a cause or a look raises does not cost the training."""
    try:
        return judged(case)
    except Exception as error:
        return {"unjudged": f"{type(error).__name__}: {error}"[:300]}


def judged(case: Case) -> dict[str, Any]:
    """What signals alone say of a case."""
    seen = observe(case, looks())
    diagnosis = diagnose(case, causes(), looks())
    return {
        "onset_step": case.onset_step,
        "last_step": case.last_step,
        "first_mover": diagnosis.first_mover,
        "num_alarms": len(case.alarms),
        "alarms": sorted({f"{one.detector}:{one.series}" for one in case.alarms})[:12],
        "symptoms": {name: round(one.symptom.degree, 4) for name, one in seen.items()},
        "ranking": ranked(diagnosis),
        "path": path_of(case),
    }


def path_of(case: Case) -> str:
    """The leaf that the flow chart of the sources ends at."""
    path = decision_path(case)
    if len(path) == 1:
        return "nonfinite"
    return "falls_back" if path[-1].answer.startswith("yes") else "lasting"


@cache
def causes() -> tuple[Cause, ...]:
    """All there are."""
    return tuple(kind() for kind in members("causes").values())


@cache
def looks() -> tuple[Look, ...]:
    """All there are."""
    return tuple(kind() for kind in members("symptoms").values())


def _about(plan: Plan) -> dict[str, Any]:
    return {
        "kind": plan.kind,
        "cause": plan.cause,
        "level": plan.level,
        "size": plan.size,
        "seed": plan.seed,
        "settings": dict(plan.settings),
        "strike_step": plan.step,
        "num_steps": plan.num_steps,
        "restart_after": plan.restart_after,
        "own_source": plan.own_source,
    }


def _num_steps(alarms: Sequence[Alarm]) -> int:
    return len({one.step for one in alarms})


def _last_together(alarms: list[Alarm]) -> list[Alarm]:
    """The last of them, with those before it that follow each other closely."""
    found: list[Alarm] = []
    for one in reversed(alarms):
        if found and found[-1].step - one.step > _TOGETHER_STEPS:
            break
        found.append(one)
    return found[::-1]
