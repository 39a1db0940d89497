"""NaN or Inf from arithmetic where no fp16 is in use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class NumericOverflow(Cause):
    """A division by nothing, an exponential too large, a masked position that is multiplied by 0, a
    bad kernel. Born in the forward if the loss is not finite, in the backward if only the gradient
    is; in a weight it is a broken state.

    Reference: NaN of exp at masked positions whose gradient is 0 * inf (prime-rl#2084,
    ms-swift#9767); attention rows that are masked as a whole (torch#41508); clipping by a NaN norm,
    which makes every gradient NaN (SIGNATURES, measured).
    """

    name: ClassVar[str] = "numeric_overflow"
    predicts: ClassVar[str] = "NaN or Inf in loss or gradient; one step may be enough"
    born: ClassVar[tuple[Born, ...]] = (
        Born.FORWARD,
        Born.BACKWARD,
    )
    lead: ClassVar[str] = "0 steps"
    recurs: ClassVar[str] = "where the same samples or the same kernel come again"
    contradicts: ClassVar[str] = "every value finite; fp16 with a loss scale that falls"
    settled_by: ClassVar[str] = (
        "repeat the step with the forward in fp32, then with reference kernels"
    )
    remedies: ClassVar[tuple[str, ...]] = (
        "the step skipped, the state from before",
        "masks before exponentials, not after",
        "fp32 or a safe kernel for what overflows",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "a lower rate",
        "nan_to_num on the loss",
    )
    data_may_be_at_fault: ClassVar[bool] = True
    prior: ClassVar[float] = -1.0
    expects: ClassVar[Mapping[str, float]] = {
        "nonfinite": 0.98,
        "runs_in_fp16": 0.03,
        "born_in_forward": 0.5,
        "born_in_backward": 0.45,
        "born_in_weights": 0.06,
        "scale_falling_every_step": 0.02,
        "scale_fell_with_finite_loss": 0.02,
        "rate_jumped": 0.04,
        "update_moved_first": 0.04,
        "one_part_moved": 0.3,
        "attention_logit_high": 0.1,
        "weight_jumped": 0.01,
        "gradient_grew_before": 0.08,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.46, "stays_away": 0.54},
        "earlier_state": {"comes_back": 0.44, "stays_away": 0.56},
        "clean_control": {"comes_back": 0.4, "stays_away": 0.6},
        "other_batch": {"comes_back": 0.42, "stays_away": 0.58},
        "left_out": {"comes_back": 0.42, "stays_away": 0.58},
        "reseeded": {"comes_back": 0.46, "stays_away": 0.54},
        "bisection": {"few_samples": 0.3, "many_samples": 0.25, "none_needed": 0.45},
        "fp32_forward": {"cured": 0.15, "not_cured": 0.85},
        "fp64_attention": {"cured": 0.1, "not_cured": 0.9},
        "fp64_loss": {"cured": 0.1, "not_cured": 0.9},
        "lower_rate": {"cured": 0.12, "not_cured": 0.88},
        "fresh_moments": {"cured": 0.1, "not_cured": 0.9},
        "repaired_moments": {"cured": 0.1, "not_cured": 0.9},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.88, "differs": 0.12},
        "eager": {"same": 0.85, "differs": 0.15},
        "inspection": {"sound": 0.8, "moments_damaged": 0.1, "weights_damaged": 0.1},
    }
