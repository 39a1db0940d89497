"""The learning rate is not where its schedule led."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class ScheduleLost(Cause):
    """A scheduler that was not restored, was stepped twice, or got the rate of a checkpoint back:
    the rate begins its warm-up anew, stands where it fell, or jumps. The update ratio follows the
    rate, by the same factor, and stays there.

    Reference: verl#7953 (a schedule that was saved and not restored); IDEFICS-80B's chronicles (a
    stray file; the rate began anew, and the run blew up some hundreds of steps later);
    `load_state_dict` restores the old rate and betas in silence (METHODS, measured). SIGNATURES:
    the update ratio is constant at the rates' ratio.
    """

    name: ClassVar[str] = "schedule_lost"
    predicts: ClassVar[str] = (
        "at a start the rate is not where it was led, the update ratio "
        "moves by the same factor; loss and gradient later"
    )
    born: ClassVar[tuple[Born, ...]] = (
        Born.BETWEEN,
        Born.UPDATE,
    )
    lead: ClassVar[str] = "3 to 60 steps"
    recurs: ClassVar[str] = "at each restart, and until the rate is set right"
    contradicts: ClassVar[str] = "a rate that goes on where it was"
    settled_by: ClassVar[str] = (
        "the rates before and after the start, against the schedule; the window at the right rate"
    )
    remedies: ClassVar[tuple[str, ...]] = (
        "the scheduler restored, its rate checked at each start",
        "the rate capped at what it was",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "setting data aside",
        "fresh optimizer moments",
        "a tighter clip",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.2
    expects: ClassVar[Mapping[str, float]] = {
        "rate_off_schedule": 0.95,
        "after_start": 0.85,
        "update_follows_rate": 0.75,
        "update_moved_first": 0.5,
        "rate_jumped": 0.5,
        "lasting": 0.8,
        "brief": 0.04,
        "loss_moved_first": 0.12,
        "gradient_moved_first": 0.12,
        "rms_t_rose": 0.2,
        "update_like_fresh": 0.03,
        "update_count_fell": 0.2,
        "weight_jumped": 0.01,
        "nonfinite": 0.05,
        "configuration_changed": 0.3,
        "second_moment_fell": 0.04,
        "rollback_did_not_help": 0.6,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.4, "stays_away": 0.6},
        "earlier_state": {"comes_back": 0.35, "stays_away": 0.65},
        "clean_control": {"comes_back": 0.35, "stays_away": 0.65},
        "other_batch": {"comes_back": 0.7, "stays_away": 0.3},
        "left_out": {"comes_back": 0.5, "stays_away": 0.5},
        "reseeded": {"comes_back": 0.5, "stays_away": 0.5},
        "bisection": {"few_samples": 0.12, "many_samples": 0.15, "none_needed": 0.73},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.5, "not_cured": 0.5},
        "fresh_moments": {"cured": 0.18, "not_cured": 0.82},
        "repaired_moments": {"cured": 0.12, "not_cured": 0.88},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.92, "differs": 0.08},
        "inspection": {"sound": 0.83, "moments_damaged": 0.1, "weights_damaged": 0.07},
    }
