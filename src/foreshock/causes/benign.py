"""An outlier without after-effect."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class Benign(Cause):
    """A hard batch, or noise: width, not height, tells it from a spike that matters.

    Reference: K2-65B report (benign spikes: high gradient norm, no lasting effect); BLOOM-176B's
    recovered within 30 steps.
    """

    name: ClassVar[str] = "benign"
    predicts: ClassVar[str] = "one or two steps out of range, then everything as before"
    born: ClassVar[tuple[Born, ...]] = (Born.FORWARD,)
    lead: ClassVar[str] = "0 steps"
    recurs: ClassVar[str] = "now and then, at no regular interval"
    contradicts: ClassVar[str] = "several alarmed steps, or a NaN; a probe that finds harm"
    settled_by: ClassVar[str] = "watch on: held-out loss against the snapshot before"
    remedies: ClassVar[tuple[str, ...]] = (
        "none is needed: watch on",
        "clipping the gradient",
    )
    no_help: ClassVar[tuple[str, ...]] = ("a rollback, which costs steps and gains nothing",)
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -0.3
    expects: ClassVar[Mapping[str, float]] = {
        "brief": 0.96,
        "lasting": 0.03,
        "probe_found_harm": 0.02,
        "nonfinite": 0.02,
        "recurs_every_step": 0.02,
        "update_moved_first": 0.05,
        "weight_jumped": 0.01,
        "rate_off_schedule": 0.02,
        "moments_nonfinite": 0.01,
        "loss_level_shifted": 0.02,
        "loss_rising_slowly": 0.02,
        "constant_factor": 0.02,
        "rate_jumped": 0.03,
        "replicas_differ": 0.01,
        "after_start": 0.06,
        "only_the_metric": 0.04,
        "scaled_together": 0.02,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.48, "stays_away": 0.52},
        "earlier_state": {"comes_back": 0.32, "stays_away": 0.68},
        "clean_control": {"comes_back": 0.12, "stays_away": 0.88},
        "other_batch": {"comes_back": 0.2, "stays_away": 0.8},
        "left_out": {"comes_back": 0.15, "stays_away": 0.85},
        "reseeded": {"comes_back": 0.45, "stays_away": 0.55},
        "bisection": {"few_samples": 0.4, "many_samples": 0.3, "none_needed": 0.3},
        "fp32_forward": {"cured": 0.1, "not_cured": 0.9},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.2, "not_cured": 0.8},
        "fresh_moments": {"cured": 0.12, "not_cured": 0.88},
        "repaired_moments": {"cured": 0.12, "not_cured": 0.88},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.92, "differs": 0.08},
        "inspection": {"sound": 0.84, "moments_damaged": 0.1, "weights_damaged": 0.06},
    }
