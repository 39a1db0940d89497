"""The learning rate is too high for where the model stands."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class LRTooHigh(Cause):
    """Updates too large for the curvature: the rate was raised, or growth of gradient and update
    built up slowly at a rate that the model has outgrown.

    Reference: OPT-175B, https://arxiv.org/abs/2205.01068 (a rate lowered by 10 %, then to two
    thirds, was stable); Wortsman et al. (2023), https://arxiv.org/abs/2309.14322, for slow growth
    at a high rate. SIGNATURES experiment 8: rate times 3, the update ratio 3 times, the loss .25
    too high, and it persists.
    """

    name: ClassVar[str] = "lr_too_high"
    predicts: ClassVar[str] = (
        "the rate jumped and the update with it, or gradient norm and "
        "update grew over many steps; then the loss"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.UPDATE,)
    lead: ClassVar[str] = "3 to 60 steps"
    recurs: ClassVar[str] = "as long as the rate stays"
    contradicts: ClassVar[str] = "an abrupt jump at an unchanged or falling rate"
    settled_by: ClassVar[str] = "the same window at a third of the learning rate"
    remedies: ClassVar[tuple[str, ...]] = (
        "a lower rate, from a state before the growth",
        "the rate capped at what it was before it jumped",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "setting data aside",
        "fresh optimizer moments",
        "replaying at the same rate",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -0.7
    expects: ClassVar[Mapping[str, float]] = {
        "rate_jumped": 0.6,
        "update_follows_rate": 0.6,
        "update_moved_first": 0.55,
        "gradient_grew_before": 0.45,
        "update_moved": 0.85,
        "loss_moved_first": 0.15,
        "lasting": 0.75,
        "rate_off_schedule": 0.25,
        "after_start": 0.08,
        "rate_rising": 0.1,
        "update_like_fresh": 0.02,
        "second_moment_fell": 0.04,
        "rms_t_rose": 0.25,
        "nonfinite": 0.1,
        "first_moment_grew": 0.08,
        "weight_jumped": 0.01,
        "loss_at_uniform": 0.15,
        "update_count_fell": 0.02,
        "lower_rate_did_not_help": 0.08,
        "rollback_did_not_help": 0.75,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.65, "stays_away": 0.35},
        "earlier_state": {"comes_back": 0.5, "stays_away": 0.5},
        "clean_control": {"comes_back": 0.45, "stays_away": 0.55},
        "other_batch": {"comes_back": 0.75, "stays_away": 0.25},
        "left_out": {"comes_back": 0.68, "stays_away": 0.32},
        "reseeded": {"comes_back": 0.7, "stays_away": 0.3},
        "bisection": {"few_samples": 0.1, "many_samples": 0.15, "none_needed": 0.75},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.6, "not_cured": 0.4},
        "fresh_moments": {"cured": 0.15, "not_cured": 0.85},
        "repaired_moments": {"cured": 0.1, "not_cured": 0.9},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.92, "differs": 0.08},
        "inspection": {"sound": 0.85, "moments_damaged": 0.09, "weights_damaged": 0.06},
    }
