"""Marin 32B: updates that grow with the first moment while the gradient and the second stay."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.case_studies.running import (
    STRIKE_STEP,
    Ran,
    Strike,
    excess,
    first_above,
    level,
    loss_is_worse_from,
    run,
    settings,
    told,
)

_LAST, _JUDGED = 400, 320
_SEED = 1
Levels = Mapping[str, float | None]
_SERIES: Final = (
    "update_ratio/global", "update_norm/global", "first_moment_norm/global",
    "second_moment_rms/global",
    "grad_norm/global", "rms_t/global", "max_attention_logit/global", "loss/global",
)  # fmt: skip
_PARTS: Final = ("embed", "blocks.0.attn", "blocks.0.ffn", "blocks.1.attn", "blocks.1.ffn")


def study(folder: Path) -> dict[str, Any]:
    """The run, its healthy twin, and what had moved when."""
    grown = Strike(step=STRIKE_STEP, fault="grown_updates", settings={"intensity": 1.0})
    ran = run(folder / "run", settings(_SEED), _LAST, [grown], judge_after=_JUDGED)
    twin = run(folder / "twin", settings(_SEED), _LAST)
    spans = {
        "before": (STRIKE_STEP - 30, STRIKE_STEP - 1),
        "after_6": (STRIKE_STEP + 6, STRIKE_STEP + 15),
        "after_60": (STRIKE_STEP + 60, STRIKE_STEP + 69),
        "end": (_LAST - 9, _LAST),
    }
    levels = {
        name: {series: level(ran, series, *span) for series in _series(ran)}
        for name, span in spans.items()
    }
    before = levels["before"]["update_norm/global"]
    doubled = first_above(ran, "update_norm/global", 2 * (before or math.inf))
    worse = loss_is_worse_from(ran, twin)
    return {
        **told(ran),
        "judged_after": {"step": _JUDGED, "diagnosis": ran.judged},
        "levels": levels,
        "times_after_6": times(levels["after_6"], levels["before"]),
        "strike_step": STRIKE_STEP,
        "update_doubled_at": doubled,
        "loss_is_worse_from": worse,
        "lead_steps": None if worse is None or doubled is None else worse - doubled,
        "excess": {
            name: excess(ran, twin, *span) for name, span in spans.items() if name != "before"
        },
    }


def times(after: Levels, before: Levels) -> dict[str, float]:
    """By what factor each level stands above another, to two digits behind the point.

    >>> times({"a": 3.0, "b": None}, {"a": 2.0, "b": 1.0})
    {'a': 1.5}
    """
    both = {name: (value, before.get(name)) for name, value in after.items()}
    return {name: round(now / was, 2) for name, (now, was) in both.items() if now and was}


def _series(ran: Ran) -> list[str]:
    return [*_SERIES, *(f"update_ratio/{part}" for part in _PARTS)]
