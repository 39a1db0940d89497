"""Weights and moments of the suspect state, against what the updates since explain."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from foreshock.core.experiment import Experiment, Result
from foreshock.core.names import (
    GLOBAL,
    GRAD_NORM,
    LOSS,
    LR,
    PARAM_NORM,
    UPDATE_NORM,
    UPDATE_RATIO,
    series_name,
    split_series,
)
from foreshock.core.reading import is_absent
from foreshock.scene import Scene
from foreshock.snapshots.codec import digest
from foreshock.state_edits import MOMENTS
from foreshock.trial import NoResultError

_SOUND, _MOMENTS, _WEIGHTS = "sound", "moments_damaged", "weights_damaged"
_BEYOND: Final = 2.0
_SHOWN: Final = 3
_ROUNDING: Final = 1e-4
_NORM: Final = series_name(PARAM_NORM.name)
_NORM_SIGNALS: Final = (f"{PARAM_NORM.name}/", f"{UPDATE_NORM.name}/")
_FORWARD: Final = (series_name(LOSS.name), series_name(GRAD_NORM.name))


class _State(NamedTuple):
    """Digests of what is finite, and names of what is not."""

    weights: dict[str, str]
    moments: dict[str, str]
    broken_weights: list[str]
    broken_moments: list[str]


@final
@dataclass(frozen=True, kw_only=True)
class Inspection(Experiment):
    """Compare the suspect state with the clean snapshot plus what its updates explain.

    A replay that is the run's bit by bit gives the very state that the run should have had. Where
    a snapshot of the suspect state is left, the two are compared tensor by tensor. Where none
    is, what the run measured is compared with what the replay measures, step by step: at the
    first step that differs, a loss or gradient of its own says that the step began with other
    weights, and equal ones before an update of its own say that the moments were others.
    """

    name: ClassVar[str] = "inspection"
    question: ClassVar[str] = "Were weights and moments what the updates make of the clean state?"
    outcomes: ClassVar[Mapping[str, str]] = {
        _SOUND: "they were",
        _MOMENTS: "the optimizer's moments were damaged",
        _WEIGHTS: "weights were damaged",
    }
    windows: ClassVar[float] = 1.0

    def why_not(self, scene: Scene) -> str:
        if scene.suspect is None and not scene.recorded.rows:
            return "no state from after the onset is left, nor readings of the run"
        return ""

    def run(self, scene: Scene) -> Result:
        if scene.suspect is not None:
            outcome, said = self._of_state(scene, scene.suspect)
            if outcome:
                return scene.result(self, outcome, said)
        outcome, said = self._of_readings(scene)
        return scene.result(self, outcome, said)

    def _of_state(self, scene: Scene, suspect: str) -> tuple[str, str]:
        """What a comparison of states says; "" where it cannot tell."""
        found = _look(scene, suspect)
        if found.broken_moments and not found.broken_weights:
            return _MOMENTS, f"moments of {_named(found.broken_moments)} are not finite"
        if found.broken_weights and not found.broken_moments:
            return _WEIGHTS, f"{_named(found.broken_weights)} are not finite, the moments are"
        before = scene.before
        if scene.suspect_after and not scene.exact:
            return "", ""
        if scene.suspect_after:
            replay = scene.look(before)
            for batches in scene.counted(scene.steps[: scene.suspect_after]):
                replay.train(batches)
            wanted = _digests(scene)
            scene.look(before)
        else:
            wanted = _look(scene, before)
        weights = _differing(found.weights, wanted.weights)
        moments = _differing(found.moments, wanted.moments)
        if not weights and not moments:
            return _SOUND, f"all of {suspect} is what the updates make of {scene.clean}"
        if weights and moments and scene.suspect_after:
            return "", ""  # whichever was first has changed the other by now
        if weights:
            more = ", and its moments too" if moments else ", its moments are as they should be"
            return _WEIGHTS, f"{_named(weights)} of {suspect} differ from the replay{more}"
        return _MOMENTS, f"moments of {_named(moments)} in {suspect} differ from the replay"

    def _of_readings(self, scene: Scene) -> tuple[str, str]:
        state = scene.before
        if scene.exact is False:
            raise NoResultError("the steps before the onset were not those of the run, bit by bit")
        replay = scene.look(state)
        num_exact = len(scene.lead) if scene.exact else 0
        try:
            for batches in scene.counted(scene.steps):
                replay.train(batches)
                differing = scene.differs_from_run(replay.step)
                if differing:
                    if not num_exact:
                        raise NoResultError("no step of the replay was the run's, bit by bit")
                    return self._first_difference(scene, replay.step, differing)
                num_exact += differing is not None
        finally:
            scene.look(state)
        if not num_exact:
            raise NoResultError("nothing that the run measured of these steps is left")
        return _SOUND, f"all readings of {num_exact} steps are those of the replay, bit by bit"

    def _first_difference(self, scene: Scene, step: int, differing: list[str]) -> tuple[str, str]:
        if series_name(LR.name) in differing:
            return _SOUND, f"at step {step} the learning rate was not that of the replay"
        shared = set(scene.recorded.series) & set(scene.replay.series)
        if not set(_FORWARD) <= shared:
            raise NoResultError(f"loss and gradient norm of step {step} were not both measured")
        if not set(_FORWARD) & set(differing):
            return _MOMENTS, (
                f"at step {step} loss and gradient norm are those of the replay, bit by bit, and "
                f"the update is not ({_named(differing)})"
            )
        return self._forward_differs(scene, step)

    def _forward_differs(self, scene: Scene, step: int) -> tuple[str, str]:
        """Whether weights that were others are behind a loss that was another."""
        here, before = _of_replay(scene, step), _of_replay(scene, step - 1)
        committed, run = _of_run(scene, step)
        if committed:
            for scope in _scopes(run):
                if said := _jumped(run, here, scope):
                    return _WEIGHTS, f"after step {step} {said}"
        at = step
        while not committed:  # skipped: weights are as they were before the step
            norm, wanted = run.get(_NORM), _norm(before, GLOBAL)
            if norm is not None and not math.isfinite(norm):
                return _WEIGHTS, f"weights are not finite at step {at}, and no update was made"
            if norm is not None and wanted is not None:
                if abs(norm - wanted) <= _ROUNDING * wanted:
                    return _SOUND, (
                        f"from step {step} on updates were skipped, and the weight norm at step "
                        f"{at} is that of before: sound weights, on which something else was "
                        "computed"
                    )
                return _WEIGHTS, (
                    f"at step {at} the weight norm is {norm:.4g}, in the replay {wanted:.4g}, "
                    f"and no update was made since step {step - 1}"
                )
            at += 1
            if at not in scene.recorded.rows:
                break
            committed, run = _of_run(scene, at)
        raise NoResultError(
            f"at step {step} the loss or the gradient is not that of the replay, and weight norms "
            "do not tell whether the weights or the computation were at fault"
        )


def _scopes(values: Mapping[str, float]) -> list[str]:
    """The whole model first, then its parts."""
    found = {split_series(one)[1]: None for one in values if one.startswith(_NORM_SIGNALS)}
    return sorted(found, key=lambda scope: scope != GLOBAL)


def _norm(values: Mapping[str, float], scope: str) -> float | None:
    """The weight norm of a scope; from the update and its ratio where it was not due."""
    told = values.get(series_name(PARAM_NORM.name, scope))
    if told is not None:
        return told
    update, ratio = _update(values, scope), values.get(series_name(UPDATE_RATIO.name, scope), 0.0)
    if update is None or not ratio > 0 or not math.isfinite(update):
        return None
    return update / ratio


def _update(values: Mapping[str, float], scope: str) -> float | None:
    """The norm of an update of a scope; from the ratio where only that is measured."""
    told = values.get(series_name(UPDATE_NORM.name, scope))
    if told is not None:
        return told
    norm = values.get(series_name(PARAM_NORM.name, scope))
    ratio = values.get(series_name(UPDATE_RATIO.name, scope))
    return None if norm is None or ratio is None else norm * ratio


def _jumped(run: Mapping[str, float], here: Mapping[str, float], scope: str) -> str:
    """How much further apart weight norms are than the last updates explain; "" if they are not.

    Until then both had the same weights, so that norms differ by the sum of the two updates at
    most: the triangle inequality.
    """
    norm, wanted = _norm(run, scope), _norm(here, scope)
    update, own = _update(run, scope), _update(here, scope)
    if norm is None or wanted is None or update is None or own is None:
        return ""
    if not math.isfinite(norm) and math.isfinite(update):
        return f"the weight norm of {scope} is not finite, though its update was"
    explained = update + own + _ROUNDING * wanted
    gap = abs(norm - wanted)
    if not gap > _BEYOND * explained:
        return ""
    return (
        f"the weight norm of {scope} is {norm:.4g} in the run and {wanted:.4g} in the "
        f"replay, {gap / explained:.3g} times what updates explain"
    )


def _look(scene: Scene, state: str) -> _State:
    scene.look(state)
    return _digests(scene)


def _digests(scene: Scene) -> _State:
    """Of the state as it is."""
    weights = dict(scene.replay.program.model.named_parameters())
    names = {id(one): name for name, one in weights.items()}
    groups = scene.replay.program.optimizer.param_groups
    order = [names.get(id(one), f"outside.{n}") for n, one in enumerate(_parameters(groups))]
    state = scene.replay.captured("optimizer")["state"]
    moments = {
        f"{order[number]}/{name}": value
        for number, held in state.items()
        for name, value in held.items()
        if isinstance(value, torch.Tensor) and (name in MOMENTS or name == "step")
    }
    return _State(
        weights={name: digest(one.detach()) for name, one in weights.items()},
        moments={name: digest(one) for name, one in moments.items()},
        broken_weights=[name for name, one in weights.items() if not _is_finite(one)],
        broken_moments=[name for name, one in moments.items() if not _is_finite(one)],
    )


def _parameters(groups: Any) -> list[torch.Tensor]:
    return [one for group in groups for one in group["params"]]


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _differing(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    names = [*found, *(wanted.keys() - found.keys())]
    return [name for name in names if found.get(name) != wanted.get(name)]


def _of_run(scene: Scene, step: int) -> tuple[bool, dict[str, float]]:
    committed, values = scene.recorded.rows[step]
    return committed, _measured(scene.recorded.series, values)


def _of_replay(scene: Scene, step: int) -> dict[str, float]:
    row = scene.replay.rows.get(step)
    return {} if row is None else _measured(scene.replay.series, row[1])


def _measured(series: Sequence[str], values: NDArray[np.float32]) -> dict[str, float]:
    told = zip(series, values.tolist(), is_absent(values).tolist(), strict=True)
    return {name: value for name, value, absent in told if not absent}


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
