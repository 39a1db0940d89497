"""One rank computes or holds something else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class RankDesync(Cause):
    """Replicas that should be equal are not: a rank that skipped what others did, a kernel that
    falls back on one machine, a shard that changed, a gather that gives stale weights. Gradients
    are averages over different models, and get worse with every step.

    Reference: WeatherGenerator#2724 (one rank skips, the reduction is poisoned); Megatron-LM#663
    (stale gathered weights); the project's sources (a checksum of each rank at fixed steps names
    the rank).
    """

    name: ClassVar[str] = "rank_desync"
    predicts: ClassVar[str] = (
        "digests of replicas or shards differ, one rank's loss stands "
        "apart; then gradient norm and loss"
    )
    born: ClassVar[tuple[Born, ...]] = (
        Born.BETWEEN,
        Born.BACKWARD,
    )
    lead: ClassVar[str] = "from none to thousands of steps"
    recurs: ClassVar[str] = "in every step, more and more, until the ranks are made equal again"
    contradicts: ClassVar[str] = "replicas that agree to the bit; a run on one rank"
    settled_by: ClassVar[str] = "digests by rank; the same window on one rank: it stays away"
    remedies: ClassVar[tuple[str, ...]] = (
        "all ranks from one snapshot",
        "the rank or machine taken out",
        "a release in which it is mended",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "setting data aside",
        "a lower rate",
        "clipping the gradient",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.5
    expects: ClassVar[Mapping[str, float]] = {
        "replicas_differ": 0.75,
        "shards_changed": 0.3,
        "canary_differs": 0.3,
        "rank_spread_high": 0.55,
        "loss_moved_first": 0.35,
        "nonfinite": 0.1,
        "lasting": 0.8,
        "brief": 0.05,
        "rate_jumped": 0.03,
        "update_moved_first": 0.1,
        "world_changed": 0.15,
        "after_start": 0.12,
        "weight_jumped": 0.1,
        "attention_logit_grew_first": 0.04,
        "rollback_did_not_help": 0.2,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.2, "stays_away": 0.8},
        "earlier_state": {"comes_back": 0.15, "stays_away": 0.85},
        "clean_control": {"comes_back": 0.15, "stays_away": 0.85},
        "other_batch": {"comes_back": 0.45, "stays_away": 0.55},
        "left_out": {"comes_back": 0.2, "stays_away": 0.8},
        "reseeded": {"comes_back": 0.35, "stays_away": 0.65},
        "bisection": {"few_samples": 0.15, "many_samples": 0.15, "none_needed": 0.7},
        "fp32_forward": {"cured": 0.1, "not_cured": 0.9},
        "fp64_attention": {"cured": 0.08, "not_cured": 0.92},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.15, "not_cured": 0.85},
        "fresh_moments": {"cured": 0.12, "not_cured": 0.88},
        "repaired_moments": {"cured": 0.12, "not_cured": 0.88},
        "other_split": {"same": 0.65, "differs": 0.35},
        "twice": {"same_bits": 0.7, "differs": 0.3},
        "eager": {"same": 0.85, "differs": 0.15},
        "inspection": {"sound": 0.5, "moments_damaged": 0.2, "weights_damaged": 0.3},
    }
