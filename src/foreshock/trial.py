"""What is seen when steps are trained again, and what it takes to tell that a trouble is back."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from foreshock.core.errors import ForeshockError
from foreshock.core.stats import MAD_TO_SD
from foreshock.replaying import MicroBatches, Replay

_CLOSE: Final = 0.1
_CHANCE: Final = 0.01
_CHANCE_OF_ONE: Final = 0.15
_FEW: Final = 3

Change = Callable[[Replay], AbstractContextManager[Any]]
"""What is changed of the training while steps are trained again."""


class NoResultError(ForeshockError):
    """An experiment was run, and what was seen tells nothing."""


class BudgetSpentError(ForeshockError):
    """The budget ended within an experiment."""


class Trial(NamedTuple):
    """What was seen when some steps were trained again.

    Attributes:
        alarmed: steps with an alarm of the incident's own.
        broken: whether one was of a value that is not finite.
        num_steps: that were trained; it ends when enough is seen.
        losses: of them.
        norms: of their gradients; empty where they are not measured.
        excess_loss: the largest loss over the median of the losses before the onset.
        excess_norm: likewise the ratio of gradient norms.
        shifted: a series that stands as far off, and for as long, as in the incident; "" if none.
    """

    alarmed: frozenset[int]
    broken: bool
    num_steps: int
    losses: tuple[float, ...]
    norms: tuple[float, ...]
    excess_loss: float
    excess_norm: float
    shifted: str = ""

    @property
    def said(self) -> str:
        """What was seen, in words."""
        count = f"{len(self.alarmed)} of {self.num_steps} steps alarmed"
        loss = f"largest loss {self.excess_loss:+.3g} from the usual"
        more = f", {self.shifted} off as in the incident" if self.shifted else ""
        return f"{count}{', a value was not finite' if self.broken else ''}, {loss}{more}"

    @property
    def figures(self) -> dict[str, float]:
        """The numbers."""
        return {
            "alarmed_steps": float(len(self.alarmed)),
            "excess_loss": self.excess_loss,
            "excess_norm": self.excess_norm,
        }


@dataclass(frozen=True, kw_only=True)
class Arena:
    """A state and the steps under which the trouble is there.

    Attributes:
        state: name of the state.
        steps: that are trained from it.
        is_real: whether it is a state that the run itself had, after the onset.
        trial: what was seen.
    """

    state: str
    steps: Sequence[MicroBatches]
    is_real: bool
    trial: Trial


def chance(num: int, num_steps: int, rate: float) -> float:
    """Probability of `num` alarmed steps or more among `num_steps`, at a rate a step.

    >>> round(chance(2, 20, 0.005), 4)
    0.0045
    """
    rate = min(1.0, rate)
    below = (math.comb(num_steps, k) * rate**k * (1 - rate) ** (num_steps - k) for k in range(num))
    return 1 - sum(below)


def is_back(trial: Trial, without: Trial | None, *, least: int, usual_rate: float) -> bool:
    """Whether an incident is back in a trial.

    Args:
        trial: what was seen.
        without: what was seen where no trouble can be: what is in it too does not count.
        least: alarmed steps from which on it counts.
        usual_rate: share of steps with such alarms in health.

    Raises:
        NoResultError: a value is not finite where no trouble can be.
    """
    if without is not None and without.broken:
        raise NoResultError("with that changed, healthy data breaks a healthy state too")
    if trial.broken or (trial.shifted and not (without and without.shifted)):
        return True
    num = len(trial.alarmed) - (0 if without is None else len(without.alarmed))
    most = _CHANCE if least > 1 else _CHANCE_OF_ONE
    return num >= least and chance(num, trial.num_steps, usual_rate) <= most


def is_close(run: Sequence[float], here: Sequence[float]) -> bool | None:
    """Whether losses differ by less than a tenth of their own noise from step to step.

    None of fewer than three.
    """
    if len(run) < _FEW:
        return None
    noise = MAD_TO_SD * float(np.median(np.abs(np.diff(run))))
    return bool(np.abs(np.subtract(run, here)).max() <= _CLOSE * noise)


def largest(values: Sequence[float]) -> float:
    """The largest that is a number; NaN if none is."""
    return max((one for one in values if not math.isnan(one)), default=float("nan"))


def median(values: Sequence[float]) -> float:
    """The median of the finite ones; NaN if none is."""
    finite = [one for one in values if np.isfinite(one)]
    return float(np.median(finite)) if finite else float("nan")


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest relative difference; where both are not finite there is none."""
    found = 0.0
    for a, b in zip(one, other, strict=True):
        if np.isfinite(a) and np.isfinite(b):
            found = max(found, abs(a - b) / max(abs(a), abs(b), 1e-30))
        elif np.isfinite(a) != np.isfinite(b):
            return float("inf")
    return found
