"""Gradients are summed in too few bits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class ReductionPrecision(Cause):
    """Gradients that are added over ranks or micro-steps in 16 bits lose what is small beside the
    sum, the more ranks the more. The gradient is biased or coarse; nothing looks broken, and the
    loss ends up above where it should be, or drifts.

    Reference: the project's sources (the dtype of the reduction is to be confirmed); stas00's
    ml-engineering (reduction in fp32); DeepSpeed's `communication_data_type`. Whole numbers above
    2,048 in fp16 and above 256 in bf16 are not exact.
    """

    name: ClassVar[str] = "reduction_precision"
    predicts: ClassVar[str] = (
        "a gradient that is coarse or a little off from the start of the "
        "reduction on, then a loss that lags or creeps up"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.BACKWARD,)
    lead: ClassVar[str] = "thousands of steps"
    recurs: ClassVar[str] = "in every step, more with more ranks or micro-steps"
    contradicts: ClassVar[str] = "a reduction in fp32"
    settled_by: ClassVar[str] = (
        "the same global batch in another split: the gradient differs beyond rounding"
    )
    remedies: ClassVar[tuple[str, ...]] = ("reduction and accumulation in fp32",)
    no_help: ClassVar[tuple[str, ...]] = (
        "a lower rate",
        "setting data aside",
        "fresh optimizer moments",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -2.0
    expects: ClassVar[Mapping[str, float]] = {
        "reduces_in_low_precision": 0.97,
        "loss_rising_slowly": 0.4,
        "loss_level_shifted": 0.25,
        "gradient_moved_first": 0.3,
        "loss_moved_first": 0.15,
        "update_moved_first": 0.08,
        "lasting": 0.85,
        "brief": 0.04,
        "world_changed": 0.25,
        "rate_jumped": 0.03,
        "nonfinite": 0.08,
        "runs_in_low_precision": 0.8,
        "weight_jumped": 0.01,
        "configuration_changed": 0.25,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.75, "stays_away": 0.25},
        "earlier_state": {"comes_back": 0.6, "stays_away": 0.4},
        "clean_control": {"comes_back": 0.55, "stays_away": 0.45},
        "other_batch": {"comes_back": 0.78, "stays_away": 0.22},
        "left_out": {"comes_back": 0.78, "stays_away": 0.22},
        "reseeded": {"comes_back": 0.75, "stays_away": 0.25},
        "bisection": {"few_samples": 0.1, "many_samples": 0.12, "none_needed": 0.78},
        "fp32_forward": {"cured": 0.25, "not_cured": 0.75},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.2, "not_cured": 0.8},
        "fresh_moments": {"cured": 0.12, "not_cured": 0.88},
        "repaired_moments": {"cured": 0.1, "not_cured": 0.9},
        "other_split": {"same": 0.3, "differs": 0.7},
        "twice": {"same_bits": 0.86, "differs": 0.14},
        "eager": {"same": 0.9, "differs": 0.1},
        "inspection": {"sound": 0.85, "moments_damaged": 0.08, "weights_damaged": 0.07},
    }
