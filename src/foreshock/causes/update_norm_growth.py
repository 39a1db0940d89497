"""Updates of one direction add up, as in Marin 32B."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class UpdateNormGrowth(Cause):
    """Successive gradients point the same way: the first moment doubles while the second is level,
    so that the update grows at an ordinary gradient norm, more in lower layers. Loss and gradient
    norm follow. Not every such rise becomes a spike of the loss.

    Reference: Marin 32B, marin-community/marin#1368 and #1390 (the update norm doubled before loss
    and gradient norm; skipping large gradients, rebuilt moments and other optimizers did not help,
    attention with qk-layernorm did).
    """

    name: ClassVar[str] = "update_norm_growth"
    predicts: ClassVar[str] = (
        "the first moment doubles at a level second one, the update norm "
        "with it, more in lower layers; then the loss, then the gradient "
        "norm"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.UPDATE,)
    lead: ClassVar[str] = "several steps"
    recurs: ClassVar[str] = "ever more often, and less and less comes back"
    contradicts: ClassVar[str] = "a second moment that fell, or a rate that rose"
    settled_by: ClassVar[str] = "the same window with fresh moments: the update grows again"
    remedies: ClassVar[tuple[str, ...]] = (
        "qk-layernorm, with a warm-up of the rate after the change",
        "a state from before the updates grew, with a lower rate",
        "clipping of the update norm, which only delays it",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "skipping steps with a large gradient",
        "rebuilt or fresh optimizer moments",
        "a snapshot one step before the spike, even with updates clipped",
        "another optimizer",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.5
    expects: ClassVar[Mapping[str, float]] = {
        "first_moment_grew": 0.9,
        "update_moved": 0.55,
        "update_moved_first": 0.5,
        "lower_layers_moved_more": 0.7,
        "gradient_moved_first": 0.06,
        "loss_moved_first": 0.15,
        "rms_t_rose": 0.12,
        "second_moment_fell": 0.05,
        "rate_jumped": 0.03,
        "update_follows_rate": 0.03,
        "update_like_fresh": 0.02,
        "after_start": 0.05,
        "weight_jumped": 0.01,
        "nonfinite": 0.04,
        "skipping_did_not_help": 0.9,
        "fresh_moments_did_not_help": 0.9,
        "rollback_did_not_help": 0.75,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.75, "stays_away": 0.25},
        "earlier_state": {"comes_back": 0.25, "stays_away": 0.75},
        "clean_control": {"comes_back": 0.25, "stays_away": 0.75},
        "other_batch": {"comes_back": 0.75, "stays_away": 0.25},
        "left_out": {"comes_back": 0.7, "stays_away": 0.3},
        "reseeded": {"comes_back": 0.7, "stays_away": 0.3},
        "bisection": {"few_samples": 0.12, "many_samples": 0.15, "none_needed": 0.73},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.08, "not_cured": 0.92},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.45, "not_cured": 0.55},
        "fresh_moments": {"cured": 0.15, "not_cured": 0.85},
        "repaired_moments": {"cured": 0.15, "not_cured": 0.85},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.92, "differs": 0.08},
        "inspection": {"sound": 0.8, "moments_damaged": 0.12, "weights_damaged": 0.08},
    }
