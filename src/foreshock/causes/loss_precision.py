"""The loss itself runs out of digits (slingshot)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class LossPrecision(Cause):
    """At a loss near nothing fp32 makes the gradient of the right class exactly 0 while the others
    stay at 1e-9: the gradients of a row no longer sum to zero, logits drift, and Adam, whose v has
    decayed, makes a large step. The loss spikes, falls back, and spikes again.

    Reference: Thilak et al. (2022), "The slingshot mechanism", https://arxiv.org/abs/2206.04817.
    SIGNATURES experiment 6: 19 spikes in 12,000 steps with an fp32 loss, 0 with fp64 logits; a
    period of about 520 steps; fp32 cross-entropy gives exactly 0 from a gap of 17 to 20 on.
    """

    name: ClassVar[str] = "loss_precision"
    predicts: ClassVar[str] = (
        "a loss near 1e-7, then spikes in a period, each of which comes back by itself"
    )
    born: ClassVar[tuple[Born, ...]] = (
        Born.FORWARD,
        Born.BACKWARD,
    )
    lead: ClassVar[str] = "hundreds of steps at a loss near nothing"
    recurs: ClassVar[str] = "periodically"
    contradicts: ClassVar[str] = "a loss far from zero"
    settled_by: ClassVar[str] = "the same steps with the logits in fp64"
    remedies: ClassVar[tuple[str, ...]] = (
        "logits and loss in fp64",
        "label smoothing or weight decay, which keep the loss from zero",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "an fp32 forward, which it already has",
        "setting batches aside",
        "clipping the gradient",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -2.0
    expects: ClassVar[Mapping[str, float]] = {
        "loss_near_zero": 0.93,
        "recurs_periodically": 0.6,
        "exact_value": 0.2,
        "second_moment_fell": 0.6,
        "output_logit_grew": 0.45,
        "rms_t_rose": 0.5,
        "gradient_near_epsilon": 0.3,
        "recovering": 0.7,
        "loss_moved_first": 0.35,
        "rate_jumped": 0.02,
        "samples_seen_before": 0.4,
        "nonfinite": 0.03,
        "after_start": 0.03,
        "gradient_moved_first": 0.3,
        "update_moved_first": 0.12,
        "weight_jumped": 0.01,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.86, "stays_away": 0.14},
        "earlier_state": {"comes_back": 0.35, "stays_away": 0.65},
        "clean_control": {"comes_back": 0.35, "stays_away": 0.65},
        "other_batch": {"comes_back": 0.76, "stays_away": 0.24},
        "left_out": {"comes_back": 0.74, "stays_away": 0.26},
        "reseeded": {"comes_back": 0.74, "stays_away": 0.26},
        "bisection": {"few_samples": 0.1, "many_samples": 0.13, "none_needed": 0.77},
        "fp32_forward": {"cured": 0.1, "not_cured": 0.9},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.88, "not_cured": 0.12},
        "lower_rate": {"cured": 0.3, "not_cured": 0.7},
        "fresh_moments": {"cured": 0.25, "not_cured": 0.75},
        "repaired_moments": {"cured": 0.15, "not_cured": 0.85},
        "other_split": {"same": 0.85, "differs": 0.15},
        "twice": {"same_bits": 0.93, "differs": 0.07},
        "eager": {"same": 0.9, "differs": 0.1},
        "inspection": {"sound": 0.86, "moments_damaged": 0.08, "weights_damaged": 0.06},
    }
