"""What is said without this tool: that it was the data, or what the flow chart ends at.

The flow chart is that of the sources: a NaN or Inf is an overflow or a broken state; what falls
back by itself is a suspected batch; the rest is lasting instability, which names no cause. The
strict form takes the one cause that people act on at each leaf, the generous form counts every
cause that the leaf's words could mean.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

ALWAYS: Final = "data_batch"

FIRST_AT: Final[Mapping[str, str]] = {
    "nonfinite": "numeric_overflow",
    "falls_back": "data_batch",
    "lasting": "lr_too_high",
}
ANY_AT: Final[Mapping[str, frozenset[str]]] = {
    "nonfinite": frozenset(
        {
            "numeric_overflow",
            "fp16_forward_overflow",
            "fp16_gradient_overflow",
            "low_precision_numerics",
            "loss_precision",
            "attention_logit_growth",
            "optimizer_state_corrupt",
            "weight_corruption",
        }
    ),
    "falls_back": frozenset(
        {"data_batch", "repeated_text", "data_mix_change", "data_order", "benign"}
    ),
    "lasting": frozenset(
        {
            "lr_too_high",
            "warmup_too_short",
            "schedule_lost",
            "optimizer_state_lost",
            "optimizer_state_corrupt",
            "stale_second_moment",
            "update_norm_growth",
            "attention_logit_growth",
            "output_logit_drift",
            "edge_of_stability",
        }
    ),
}
DATA: Final = frozenset({"data_batch", "repeated_text", "data_mix_change", "data_order"})


def baselines(rows: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Shares right of the baselines; of the true cause and the flow chart's leaf of each case."""
    cases = list(rows)
    if not cases:
        return {}

    def share(hits: Iterable[bool]) -> float:
        return round(sum(hits) / len(cases), 4)

    return {
        "cases": len(cases),
        "always_data": {
            "strict": share(truth == ALWAYS for truth, _ in cases),
            "generous": share(truth in DATA for truth, _ in cases),
        },
        "flow_chart": {
            "strict": share(FIRST_AT[leaf] == truth for truth, leaf in cases),
            "generous": share(truth in ANY_AT[leaf] for truth, leaf in cases),
        },
    }
