"""Good data in a bad order: sampler lost, poor shuffle, repeated data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class DataOrder(Cause):
    """The sampler's place is lost at a restart, so that data is trained twice: the loss is too low,
    and "jumps" where data that is new begins. Or the shuffle is poor: stretches of one source or
    document follow each other, the training loss shifts its level, and held-out loss does not.

    Reference: Lightning#18780 and Megatron-Bridge#4565 (streams that began anew at a resume); Marin
    32B (a linear permutation; a Feistel one removed the shift); LLaMA-Factory#5247 (a book that
    filled runs of samples).
    """

    name: ClassVar[str] = "data_order"
    predicts: ClassVar[str] = (
        "the loss too low after a restart, then a jump where the repeated "
        "data ends; or a level that shifts while gradient and held-out "
        "loss do not"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.FORWARD,)
    lead: ClassVar[str] = "0 steps; the data-index shows it at once"
    recurs: ClassVar[str] = "at the same places of the data, and at each restart"
    contradicts: ClassVar[str] = (
        "samples that were never seen before, in the mix that was asked for"
    )
    settled_by: ClassVar[str] = "the window in another order: the shift is gone"
    remedies: ClassVar[tuple[str, ...]] = (
        "the sampler's place restored with the state",
        "a pseudo-random permutation that is one",
        "packing before mixing",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "a rollback with the same order",
        "a lower rate",
    )
    data_may_be_at_fault: ClassVar[bool] = True
    prior: ClassVar[float] = -1.0
    expects: ClassVar[Mapping[str, float]] = {
        "samples_seen_before": 0.6,
        "loss_dropped": 0.55,
        "loss_level_shifted": 0.55,
        "loss_moved_first": 0.7,
        "after_start": 0.5,
        "gradient_moved": 0.3,
        "update_moved": 0.12,
        "update_moved_first": 0.03,
        "samples_alike": 0.4,
        "new_source": 0.15,
        "samples_differ": 0.15,
        "nonfinite": 0.03,
        "rate_jumped": 0.03,
        "few_samples_carry_the_loss": 0.05,
        "weight_jumped": 0.01,
        "rms_t_rose": 0.12,
        "probe_found_harm": 0.1,
        "rate_off_schedule": 0.05,
        "update_like_fresh": 0.02,
        "only_the_metric": 0.08,
        "scaled_together": 0.02,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.86, "stays_away": 0.14},
        "earlier_state": {"comes_back": 0.65, "stays_away": 0.35},
        "clean_control": {"comes_back": 0.05, "stays_away": 0.95},
        "other_batch": {"comes_back": 0.15, "stays_away": 0.85},
        "left_out": {"comes_back": 0.35, "stays_away": 0.65},
        "reseeded": {"comes_back": 0.25, "stays_away": 0.75},
        "bisection": {"few_samples": 0.12, "many_samples": 0.74, "none_needed": 0.14},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.15, "not_cured": 0.85},
        "fresh_moments": {"cured": 0.12, "not_cured": 0.88},
        "repaired_moments": {"cured": 0.1, "not_cured": 0.9},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.92, "differs": 0.08},
        "inspection": {"sound": 0.86, "moments_damaged": 0.08, "weights_damaged": 0.06},
    }
