"""The optimizer's moments are damaged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class OptimizerStateCorrupt(Cause):
    """A wrong update from a right gradient: moments scaled, zeroed or not finite, in one shard or
    in all, by memory, storage in 16 bits or a wrong unit. In the step of the fault loss and
    gradient norm are as usual in every variant; only the update is not. The loss follows one to six
    steps later.

    Reference: bitsandbytes#227 (a wrong code book of 8-bit moments). SIGNATURES experiment 8: v
    scaled by 1e-4, an update 22 times as large and 100 steps to recover; v = 0, 11,000 times; a
    first moment negated cannot be told from the update.
    """

    name: ClassVar[str] = "optimizer_state_corrupt"
    predicts: ClassVar[str] = (
        "the update ratio jumps while loss and gradient norm of that step "
        "are as usual; the loss follows"
    )
    born: ClassVar[tuple[Born, ...]] = (
        Born.BETWEEN,
        Born.UPDATE,
    )
    lead: ClassVar[str] = "1 to 6 steps"
    recurs: ClassVar[str] = (
        "not by itself: the damage is done once, and heals in 1 / (1 - beta2) steps or never"
    )
    contradicts: ClassVar[str] = "loss or gradient norm moved first; the learning rate changed"
    settled_by: ClassVar[str] = (
        "the suspect state with repaired or fresh moments; its moments inspected"
    )
    remedies: ClassVar[tuple[str, ...]] = (
        "the whole state from before the damage",
        "fresh moments, with the rate warmed up again",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "setting data aside",
        "skipping steps",
        "going back with the weights only",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -0.5
    expects: ClassVar[Mapping[str, float]] = {
        "update_moved_first": 0.96,
        "update_moved": 0.97,
        "loss_moved_first": 0.02,
        "gradient_moved_first": 0.02,
        "rms_t_rose": 0.88,
        "second_moment_fell": 0.6,
        "moments_nonfinite": 0.15,
        "first_moment_grew": 0.1,
        "update_follows_rate": 0.02,
        "rate_jumped": 0.02,
        "rate_off_schedule": 0.02,
        "gradient_grew_before": 0.03,
        "nonfinite": 0.05,
        "brief": 0.15,
        "after_start": 0.08,
        "update_count_fell": 0.01,
        "weight_jumped": 0.01,
        "attention_logit_grew_first": 0.04,
        "lower_layers_moved_more": 0.15,
        "rollback_did_not_help": 0.1,
        "fresh_moments_did_not_help": 0.2,
        "log_z_grew": 0.05,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.06, "stays_away": 0.94},
        "earlier_state": {"comes_back": 0.06, "stays_away": 0.94},
        "clean_control": {"comes_back": 0.04, "stays_away": 0.96},
        "other_batch": {"comes_back": 0.5, "stays_away": 0.5},
        "left_out": {"comes_back": 0.1, "stays_away": 0.9},
        "reseeded": {"comes_back": 0.35, "stays_away": 0.65},
        "bisection": {"few_samples": 0.2, "many_samples": 0.2, "none_needed": 0.6},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.3, "not_cured": 0.7},
        "fresh_moments": {"cured": 0.4, "not_cured": 0.6},
        "repaired_moments": {"cured": 0.5, "not_cured": 0.5},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.92, "differs": 0.08},
        "inspection": {"sound": 0.15, "moments_damaged": 0.75, "weights_damaged": 0.1},
    }
