"""GLM-130B: a gradient of the embedding that outgrows the others, and a loss scale that falls."""

from pathlib import Path
from typing import Any, Final

from benchmarks.case_studies.running import (
    STRIKE_STEP,
    Strike,
    excess,
    last_of_first,
    level,
    loss_is_worse_from,
    run,
    settings,
    told,
)

_LAST, _LAST_OF_SCALE = 300, 290
_SEED = 1
_GRADIENTS: Final = ("grad_norm/global", "grad_norm/embed", "loss/global")


def study(folder: Path) -> dict[str, Any]:
    """One run for the embedding, with its healthy twin, and one for the loss scale."""
    grown = Strike(step=STRIKE_STEP, fault="embedding_gradient", settings={"intensity": 0.2})
    ran = run(folder / "embedding", settings(_SEED), _LAST, [grown])
    twin = run(folder / "twin", settings(_SEED), _LAST)
    falling = Strike(step=STRIKE_STEP, fault="half_gradient", settings={"intensity": 1.0})
    scaled = run(folder / "scale", settings(_SEED, precision="fp16"), _LAST_OF_SCALE, [falling])
    spans = {"before": (STRIKE_STEP - 30, STRIKE_STEP - 1), "at_its_peak": (259, 259)}
    return {
        "embedding": {
            **told(ran),
            "levels": {
                name: {series: level(ran, series, *span) for series in _GRADIENTS}
                for name, span in spans.items()
            },
            "loss_is_worse_from": loss_is_worse_from(ran, twin),
            "excess_of_first_attempt": excess(ran, twin, STRIKE_STEP, last_of_first(ran)),
        },
        "scale": {
            **told(scaled),
            "loss_scale": [
                level(scaled, "loss_scale/global", step, step)
                for step in range(STRIKE_STEP - 1, STRIKE_STEP + 20)
            ],
            "largest_loss": round(
                max(v for (_, step), v in scaled.losses.items() if step >= STRIKE_STEP), 3
            ),
        },
    }
