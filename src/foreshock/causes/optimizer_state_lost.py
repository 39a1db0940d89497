"""Moments or their step count were lost at a restart."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class OptimizerStateLost(Cause):
    """A resume that loads the weights and not the moments. Adam's first update is the rate on every
    weight, lr * sqrt(N) in norm, whatever the gradient; with the count kept and beta2 .999 it is (1
    - beta1) / sqrt(1 - beta2) times that. Loss and gradient norm of that step are those of a
    healthy run; the loss follows.

    Reference: KempnerForge#115 (moments dropped in silence at each resume). SIGNATURES experiment
    8: fresh Adam 4.4 times the update and 17 steps to recover; m = v = 0 with the count kept 8.9
    times at beta2 .999, 1.9 times at .95.
    """

    name: ClassVar[str] = "optimizer_state_lost"
    predicts: ClassVar[str] = (
        "right after a start the update ratio is that of a fresh "
        "optimizer, while loss and gradient norm are as usual; the loss "
        "follows"
    )
    born: ClassVar[tuple[Born, ...]] = (
        Born.BETWEEN,
        Born.UPDATE,
    )
    lead: ClassVar[str] = "1 to 6 steps"
    recurs: ClassVar[str] = "at each restart from a checkpoint"
    contradicts: ClassVar[str] = (
        "no restart nearby; a count of updates that goes on; moments as they were"
    )
    settled_by: ClassVar[str] = "the suspect state with the moments of the snapshot before"
    remedies: ClassVar[tuple[str, ...]] = (
        "resume with the whole state: moments, counts, schedule",
        "if they are gone, the rate warmed up again",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "setting data aside",
        "fresh moments, which it has already",
        "clipping the gradient",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.0
    expects: ClassVar[Mapping[str, float]] = {
        "after_start": 0.93,
        "update_moved_first": 0.75,
        "update_like_fresh": 0.75,
        "update_count_fell": 0.6,
        "update_moved": 0.8,
        "loss_moved_first": 0.03,
        "gradient_moved_first": 0.03,
        "rms_t_rose": 0.7,
        "second_moment_fell": 0.55,
        "first_moment_grew": 0.04,
        "recovering": 0.6,
        "lasting": 0.3,
        "rate_jumped": 0.06,
        "moments_nonfinite": 0.02,
        "rate_off_schedule": 0.15,
        "nonfinite": 0.04,
        "weight_jumped": 0.01,
        "embedding_gradient_dominates": 0.06,
        "rollback_did_not_help": 0.15,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.12, "stays_away": 0.88},
        "earlier_state": {"comes_back": 0.1, "stays_away": 0.9},
        "clean_control": {"comes_back": 0.06, "stays_away": 0.94},
        "other_batch": {"comes_back": 0.45, "stays_away": 0.55},
        "left_out": {"comes_back": 0.15, "stays_away": 0.85},
        "reseeded": {"comes_back": 0.35, "stays_away": 0.65},
        "bisection": {"few_samples": 0.2, "many_samples": 0.2, "none_needed": 0.6},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.3, "not_cured": 0.7},
        "fresh_moments": {"cured": 0.2, "not_cured": 0.8},
        "repaired_moments": {"cured": 0.5, "not_cured": 0.5},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.92, "differs": 0.08},
        "inspection": {"sound": 0.25, "moments_damaged": 0.65, "weights_damaged": 0.1},
    }
