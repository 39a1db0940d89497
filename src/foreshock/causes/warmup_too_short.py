"""The rate rises faster than the model settles."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class WarmupTooShort(Cause):
    """Early in training curvature is high and v knows little: a rate that is up before both have
    settled makes gradient and update grow during the warm-up or right after it.

    Reference: Wortsman et al. (2023), https://arxiv.org/abs/2309.14322 (a longer warm-up lowers the
    sensitivity to the rate); Liu et al. (2020), "On the variance of the adaptive learning rate",
    https://arxiv.org/abs/1908.03265; untuned warm-up takes 2 / (1 - beta2) steps: 39, 199, 1,999
    for .95, .99, .999 (METHODS, measured).
    """

    name: ClassVar[str] = "warmup_too_short"
    predicts: ClassVar[str] = (
        "gradient norm and update grow while the rate is still rising or just up; then the loss"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.UPDATE,)
    lead: ClassVar[str] = "tens of steps, with the ramp"
    recurs: ClassVar[str] = "at about the same rate, whatever the data"
    contradicts: ClassVar[str] = "a rate that has been level or falling for long"
    settled_by: ClassVar[str] = (
        "the window at a third of the rate, and the same samples later in training"
    )
    remedies: ClassVar[tuple[str, ...]] = (
        "a longer warm-up",
        "a lower peak rate",
        "RAdam",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "setting data aside",
        "clipping alone",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.0
    expects: ClassVar[Mapping[str, float]] = {
        "rate_rising": 0.95,
        "gradient_grew_before": 0.55,
        "rate_jumped": 0.05,
        "rate_off_schedule": 0.05,
        "update_moved": 0.7,
        "update_follows_rate": 0.3,
        "loss_moved_first": 0.25,
        "gradient_moved": 0.92,
        "update_moved_first": 0.22,
        "lasting": 0.6,
        "after_start": 0.06,
        "gradient_moved_first": 0.3,
        "nonfinite": 0.1,
        "weight_jumped": 0.01,
        "update_like_fresh": 0.04,
        "second_moment_fell": 0.05,
        "embedding_gradient_dominates": 0.12,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.75, "stays_away": 0.25},
        "earlier_state": {"comes_back": 0.3, "stays_away": 0.7},
        "clean_control": {"comes_back": 0.35, "stays_away": 0.65},
        "other_batch": {"comes_back": 0.72, "stays_away": 0.28},
        "left_out": {"comes_back": 0.7, "stays_away": 0.3},
        "reseeded": {"comes_back": 0.65, "stays_away": 0.35},
        "bisection": {"few_samples": 0.1, "many_samples": 0.15, "none_needed": 0.75},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.65, "not_cured": 0.35},
        "fresh_moments": {"cured": 0.2, "not_cured": 0.8},
        "repaired_moments": {"cured": 0.12, "not_cured": 0.88},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.92, "differs": 0.08},
        "inspection": {"sound": 0.85, "moments_damaged": 0.09, "weights_damaged": 0.06},
    }
