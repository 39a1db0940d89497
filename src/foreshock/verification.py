"""Is the model whole? Probes before against after: differences, noise, a verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from foreshock.core.errors import ConfigError
from foreshock.core.probe import Probe
from foreshock.core.reading import json_number

Measured = Mapping[str, Sequence[float]]
"""Values by probe, one per item, lower is better."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One probe before and after.

    Attributes:
        probe: its name.
        before: mean before.
        after: mean after.
        difference: mean of the paired differences, after minus before.
        tolerance: how much worse still counts as noise.
        passed: whether the difference stays within it; never with a non-finite value.
    """

    probe: str
    before: float
    after: float
    difference: float
    tolerance: float
    passed: bool

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        numbers = ("before", "after", "difference", "tolerance")
        figures = {name: json_number(getattr(self, name)) for name in numbers}
        return {"probe": self.probe, **figures, "passed": self.passed}


def compare(
    before: Measured, after: Measured, neighbours: Sequence[Measured] = (), z: float = 3.09
) -> list[Comparison]:
    """Compare probes before and after, beyond noise.

    The tolerance of a probe is `z` standard errors of the paired differences, widened as
    Student's t asks for few items (1.30 times at 12, 1.55 times at 8), plus the largest
    change between neighbouring healthy states: the step-to-step movement that training
    always has. A probe of one item has no standard error, only that movement.

    Args:
        before: measured at the healthy snapshot.
        after: measured now.
        neighbours: measured at healthy states around `before`, oldest first.
        z: 3.09 is a one-sided error of 0.1 % for one probe.

    Raises:
        ConfigError: a probe is missing in `after`, or has another number of items there.

    Reference: Wallace 1959, "Bounds on normal approximations to Student's and the
    chi-square distributions", for t (0.5 % too wide at 8 items, 7 % at 4).

    >>> one = compare({"p": [1.0, 2.0]}, {"p": [1.0, 2.0]})[0]
    >>> one.passed, one.difference
    (True, 0.0)
    >>> compare({"p": [1.0, 2.0]}, {"p": [float("nan"), 2.0]})[0].passed
    False
    """
    found: list[Comparison] = []
    for name, old in before.items():
        count = len(after.get(name, ()))
        if count != len(old) or not count:
            raise ConfigError(
                f"probe {name!r} has {len(old)} items before and {count} after; it must measure "
                "the same items, one at least"
            )
        with np.errstate(invalid="ignore"):  # Inf - Inf is NaN, and a NaN is never whole
            pair = np.asarray(after[name], dtype=float) - np.asarray(old, dtype=float)
            difference = float(pair.mean())
            error = float(pair.std(ddof=1)) / math.sqrt(count) if count > 1 else 0.0
        levels = [float(np.mean(measured[name])) for measured in neighbours if name in measured]
        levels.append(float(np.mean(old)))
        levels = [level for level in levels if math.isfinite(level)]
        moved = max((abs(b - a) for a, b in pairwise(levels)), default=0.0)
        tolerance = _student(z, count - 1) * error + moved
        found.append(
            Comparison(
                probe=name,
                before=float(np.mean(old)),
                after=float(np.mean(after[name])),
                difference=difference,
                tolerance=tolerance,
                passed=math.isfinite(difference) and difference <= max(tolerance, 0.0),
            )
        )
    return found


def _student(z: float, freedom: int) -> float:
    """The quantile of Student's t where the normal distribution has `z`."""
    if freedom < 1:
        return z
    wide = (z * (8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom
    return math.sqrt(freedom * math.expm1(min(wide, 700.0)))


def measure(model: Any, probes: Sequence[Probe]) -> dict[str, list[float]]:
    """Run the probes on a model without leaving a trace: mode, gradients and RNG are kept."""
    import torch  # noqa: PLC0415 - the comparison above works without torch

    from foreshock.snapshots.parts import GlobalRandomPart, clone_tree  # noqa: PLC0415

    modes = [(module, module.training) for module in model.modules()]
    generators = GlobalRandomPart()
    before = clone_tree(generators.capture())
    try:
        model.eval()
        with torch.no_grad():
            return {probe.name: probe.measure(model) for probe in probes}
    finally:
        generators.restore(before)
        for module, training in modes:
            module.training = training
