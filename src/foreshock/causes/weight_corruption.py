"""A weight changed that no update changed: memory, a copy or a kernel failed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class WeightCorruption(Cause):
    """Weights that moved further than their updates moved them: `| ||w'|| - ||w|| | <= ||w' - w||
    <= sum of ||update||` over the steps in between, so that a norm that moved by more was moved by
    something else. Loss and gradient norm jump at once, at an ordinary update.

    Reference: Dixit et al. (2021), "Silent Data Corruptions at Scale",
    https://arxiv.org/abs/2102.11245; the triangle inequality. SIGNATURES experiment 8: one weight
    times 2^16, an update 1 time its size, the loss 1.97 higher at once, the gradient norm 22 times.
    """

    name: ClassVar[str] = "weight_corruption"
    predicts: ClassVar[str] = (
        "a weight norm jumps by more than the updates since moved the "
        "weights; loss and gradient norm at once"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.BETWEEN,)
    lead: ClassVar[str] = "0 steps"
    recurs: ClassVar[str] = "not by itself; again where the hardware is bad"
    contradicts: ClassVar[str] = "updates as large as the jump, or norms that moved as ever"
    settled_by: ClassVar[str] = "the same steps again from the snapshot before: no jump"
    remedies: ClassVar[tuple[str, ...]] = (
        "the state from before",
        "the machine taken out where it comes again",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "setting data aside",
        "a lower rate",
        "fresh optimizer moments",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.3
    expects: ClassVar[Mapping[str, float]] = {
        "weight_jumped": 0.93,
        "weights_moved_by_updates": 0.05,
        "born_in_weights": 0.15,
        "loss_moved_first": 0.75,
        "gradient_moved": 0.85,
        "update_moved_first": 0.06,
        "one_part_moved": 0.6,
        "lasting": 0.75,
        "brief": 0.1,
        "rate_jumped": 0.03,
        "rms_t_rose": 0.6,
        "after_start": 0.12,
        "loss_at_uniform": 0.3,
        "canary_differs": 0.08,
        "update_follows_rate": 0.02,
        "attention_logit_grew_first": 0.04,
        "probe_found_harm": 0.75,
        "gradient_grew_before": 0.03,
        "rollback_did_not_help": 0.08,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.06, "stays_away": 0.94},
        "earlier_state": {"comes_back": 0.06, "stays_away": 0.94},
        "clean_control": {"comes_back": 0.05, "stays_away": 0.95},
        "other_batch": {"comes_back": 0.85, "stays_away": 0.15},
        "left_out": {"comes_back": 0.1, "stays_away": 0.9},
        "reseeded": {"comes_back": 0.45, "stays_away": 0.55},
        "bisection": {"few_samples": 0.15, "many_samples": 0.15, "none_needed": 0.7},
        "fp32_forward": {"cured": 0.1, "not_cured": 0.9},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.2, "not_cured": 0.8},
        "fresh_moments": {"cured": 0.1, "not_cured": 0.9},
        "repaired_moments": {"cured": 0.1, "not_cured": 0.9},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.82, "differs": 0.18},
        "eager": {"same": 0.88, "differs": 0.12},
        "inspection": {"sound": 0.2, "moments_damaged": 0.1, "weights_damaged": 0.7},
    }
