"""Experiments on a trial's case: what the diagnosis comes to when they are made."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from benchmarks.diagnosis.runs import ANCHOR_STEP, DISK_STEPS, recipe, snapshot_at
from benchmarks.diagnosis.watched import KEPT_STEPS, Watched, state_at
from foreshock.catalog import members
from foreshock.core.case import Case
from foreshock.core.cause import Diagnosis, diagnose
from foreshock.core.errors import ForeshockError
from foreshock.core.experiment import Result
from foreshock.incident_case import Recorded
from foreshock.scene import Scene
from foreshock.settling import settle
from foreshock.window import SETTLE_STEPS

BUDGET_STEPS: Final = 1200
"""Steps that may be trained for the experiments of one case."""
_SUSPECT: Final = "the present state"
_LONGEST_WINDOW: Final = 40
_SET_ASIDE: Final = 40
"""Steps behind the case whose data is suspect too: as far as a Guard's doubling look-ahead comes
until the longest bad region of a trial has ended."""
_LEAD: Final = 4
"""Steps by which the clean state lies before the onset at least, to be compared with the run."""


def settled(watched: Watched, case: Case) -> dict[str, Any]:
    """Run experiments until the case is settled; what they came to, strict JSON.

    The scene is that of a run which stands at the case's last step: its present state, those it
    had every ten steps before, the samples that it trained and those that come next. What is
    wrong with the program or the data is in the scene too; a fault of the state is in the
    states after the strike alone.

    Args:
        watched: at the case's last step, with the states it has kept; used up.
        case: with a timeline of its own.

    Returns:
        `ranking` as in a trial, `results` as JSON, in order, `not_made` (experiment and
        reason), `num_steps` trained, and `why` it ended; or `failed`, and nothing else.
    """
    causes = [kind() for kind in members("causes").values()]
    looks = [kind() for kind in members("symptoms").values()]

    def diagnosed(results: Sequence[Result]) -> Diagnosis:
        return diagnose(replace(case, results=tuple(results)), causes, looks)

    try:
        with scene_of_trial(watched, case) as scene:
            found = settle(
                scene,
                diagnosed,
                causes,
                is_spent=lambda: scene.steps_trained >= BUDGET_STEPS,
            )
    except (ForeshockError, RuntimeError, ValueError) as error:
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
    return {
        "ranking": ranked(found.after),
        "results": [one.result.to_json() for one in found.told if one.result is not None],
        "not_made": [[one.experiment, one.reason] for one in found.told if one.result is None],
        "num_steps": found.num_steps,
        "settled": found.is_settled,
        "exact": found.exact,
        "why": found.why,
    }


def scene_of_trial(watched: Watched, case: Case) -> Scene:
    """The states and data of a trial's case, as experiments need them."""
    replay, batches = watched.replay, watched.batches
    last, onset = watched.step, max(case.onset_step, ANCHOR_STEP + 1)
    replay.keep(_SUSPECT)
    recorded = Recorded(tuple(replay.series), dict(replay.rows))
    window = [batches[step] for step in range(onset, last + 1)][:_LONGEST_WINDOW]
    behind = [watched.drawn() for _ in range(_SET_ASIDE + len(window) + SETTLE_STEPS)]
    clean = max(ANCHOR_STEP, (onset - _LEAD) // KEPT_STEPS * KEPT_STEPS)
    replay.back(state_at(clean))
    past = [batches[step] for step in range(ANCHOR_STEP + 1, clean + 1)]
    flat = [*watched.before, *itertools.chain.from_iterable(micro for one in past for micro in one)]
    first = min(alarm.step for alarm in case.alarms)
    return Scene(
        replay,
        recipe(),
        steps=window,
        alarmed={(alarm.detector, alarm.series) for alarm in case.alarms},
        num_alarmed=len(case.alarmed_steps),
        clean=state_at(clean),
        lead=[batches[step] for step in range(clean + 1, onset)],
        older=snapshot_at(ANCHOR_STEP - 2 * DISK_STEPS),
        suspect=_SUSPECT,
        suspect_after=len(window),
        before_alarm=first - onset,
        past=flat[::-1],
        later=behind[_SET_ASIDE:],
        recorded=recorded,
    )


def settled_anew(told: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """The same results weighed by the causes as they are now; the case has its symptoms or not."""
    if "failed" in told:
        return dict(told)
    results = [Result.from_json(one) for one in told["results"]]
    looks = () if case.symptoms else [kind() for kind in members("symptoms").values()]
    causes = [kind() for kind in members("causes").values()]
    return {**told, "ranking": ranked(diagnose(replace(case, results=results), causes, looks))}


def ranked(diagnosis: Diagnosis) -> list[list[Any]]:
    """Causes with their probabilities, the likeliest first."""
    return [[one.cause, round(one.probability, 6)] for one in diagnosis.candidates]
