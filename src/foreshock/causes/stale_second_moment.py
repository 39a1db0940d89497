"""Adam's second moment is out of date when gradients grow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class StaleSecondMoment(Cause):
    """v remembers 1 / (1 - beta2) steps. Where gradients have been small for long, or grow at once,
    v is too small for them: RMS_t = sqrt(mean(g^2 / v)) rises above 1, and the update with it, one
    to eight steps before the loss.

    Reference: Wortsman et al. (2023), "Stable and low-precision training",
    https://arxiv.org/abs/2304.13013; Cohen et al. (2022), https://arxiv.org/abs/2207.14484.
    SIGNATURES experiment 5: the update peaks at 4.4 times its norm with beta2 .999, 3.2 with .99,
    2.2 with .95; RMS_t jumps at once, the update one to three steps later.
    """

    name: ClassVar[str] = "stale_second_moment"
    predicts: ClassVar[str] = (
        "v decays, the gradient grows, RMS_t rises above 1, then the update, then the loss"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.UPDATE,)
    lead: ClassVar[str] = "1 to 8 steps"
    recurs: ClassVar[str] = "at every rise of the gradient, until v remembers less"
    contradicts: ClassVar[str] = "RMS_t near 1, or a first moment that grew at a level second one"
    settled_by: ClassVar[str] = (
        "the same window with a smaller beta2, or fresh moments: a smaller update"
    )
    remedies: ClassVar[tuple[str, ...]] = (
        "a smaller beta2 (.95)",
        "StableAdamW, or clipping of the update",
        "ramping the change in the data, with the rate warmed up again",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "qk-layernorm",
        "setting the batch aside, where the mix stays changed",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.0
    expects: ClassVar[Mapping[str, float]] = {
        "rms_t_rose": 0.97,
        "second_moment_fell": 0.4,
        "update_moved": 0.7,
        "gradient_moved_first": 0.5,
        "gradient_grew_before": 0.35,
        "loss_moved": 0.9,
        "gradient_moved": 0.9,
        "update_moved_first": 0.22,
        "loss_moved_first": 0.12,
        "rate_jumped": 0.04,
        "first_moment_grew": 0.06,
        "update_like_fresh": 0.03,
        "update_count_fell": 0.02,
        "moments_nonfinite": 0.02,
        "nonfinite": 0.05,
        "after_start": 0.08,
        "recovering": 0.5,
        "embedding_gradient_dominates": 0.12,
        "rate_off_schedule": 0.04,
        "update_follows_rate": 0.04,
        "weight_jumped": 0.01,
        "fresh_moments_did_not_help": 0.4,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.8, "stays_away": 0.2},
        "earlier_state": {"comes_back": 0.45, "stays_away": 0.55},
        "clean_control": {"comes_back": 0.12, "stays_away": 0.88},
        "other_batch": {"comes_back": 0.4, "stays_away": 0.6},
        "left_out": {"comes_back": 0.4, "stays_away": 0.6},
        "reseeded": {"comes_back": 0.65, "stays_away": 0.35},
        "bisection": {"few_samples": 0.2, "many_samples": 0.45, "none_needed": 0.35},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.5, "not_cured": 0.5},
        "fresh_moments": {"cured": 0.6, "not_cured": 0.4},
        "repaired_moments": {"cured": 0.2, "not_cured": 0.8},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.92, "differs": 0.08},
        "inspection": {"sound": 0.82, "moments_damaged": 0.12, "weights_damaged": 0.06},
    }
