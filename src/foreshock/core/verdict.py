"""The verdict of the gate: commit or skip, the same on every rank."""

import math
from dataclasses import dataclass

from foreshock.core.reading import json_number


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of one optimizer step.

    Attributes:
        step: the optimizer step.
        committed: whether the update was made; None while the device has not said
            (nothing waits for it; the monitor learns it `lag_steps` later).
        reason: why a step was skipped, in words; empty for a commit.
    """

    step: int
    committed: bool | None
    reason: str = ""


def gate_reason(grad_norm: float, gate_limit: float) -> str:
    """Why the gate would skip this gradient norm; empty if it would commit.

    The rule: commit if and only if the norm is finite and at most the limit.

    >>> gate_reason(0.3, 2.0), gate_reason(7.0, 2.0)
    ('', 'gradient norm 7 above the gate limit 2')
    >>> gate_reason(float("nan"), 2.0)
    'gradient norm is NaN'
    """
    if not math.isfinite(grad_norm):
        return f"gradient norm is {json_number(grad_norm)}"
    if grad_norm > gate_limit:
        return f"gradient norm {grad_norm:.4g} above the gate limit {gate_limit:.4g}"
    return ""
