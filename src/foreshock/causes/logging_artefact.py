"""Only the number is wrong, not the run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class LoggingArtefact(Cause):
    """What is logged is not what is trained on: a term that is left in or out, a loss that is
    summed over ranks, a norm that is still scaled or that one shard alone made, a NaN that a filter
    replaced. Gradient, update, weights and held-out loss go on as before.

    Reference: open_lm#255 (the balancing term stood in the logged loss); torch#170862 (norms of one
    shard); ms-swift#9767 (a metric that is NaN while training is fine). A loss of exactly 0 or a
    gradient norm of exactly 1 is an artefact, not convergence (SIGNATURES).
    """

    name: ClassVar[str] = "logging_artefact"
    predicts: ClassVar[str] = (
        "one series moves, often by a constant factor or to an exact value, and no other does"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.METRIC,)
    lead: ClassVar[str] = "none: nothing but the metric moves"
    recurs: ClassVar[str] = "in every reading since something changed"
    contradicts: ClassVar[str] = (
        "gradient, update or held-out loss moved as well; a probe found harm"
    )
    settled_by: ClassVar[str] = "the same batch measured anew, outside the logging"
    remedies: ClassVar[tuple[str, ...]] = ("the metric mended; the run goes on",)
    no_help: ClassVar[tuple[str, ...]] = (
        "a rollback",
        "a lower rate",
        "setting data aside",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.5
    expects: ClassVar[Mapping[str, float]] = {
        "only_the_metric": 0.93,
        "constant_factor": 0.45,
        "exact_value": 0.2,
        "gradient_moved": 0.08,
        "update_moved": 0.03,
        "update_moved_first": 0.01,
        "probe_found_harm": 0.02,
        "lasting": 0.85,
        "brief": 0.06,
        "nonfinite": 0.08,
        "weight_jumped": 0.01,
        "after_start": 0.4,
        "code_changed": 0.3,
        "loss_level_shifted": 0.5,
        "rms_t_rose": 0.04,
        "activation_grew": 0.03,
        "rate_jumped": 0.02,
        "recovering": 0.05,
        "labels_masked": 0.02,
        "rollback_did_not_help": 0.9,
        "loss_moved_first": 0.85,
        "loss_dropped": 0.3,
        "scaled_together": 0.03,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.8, "stays_away": 0.2},
        "earlier_state": {"comes_back": 0.75, "stays_away": 0.25},
        "clean_control": {"comes_back": 0.7, "stays_away": 0.3},
        "other_batch": {"comes_back": 0.75, "stays_away": 0.25},
        "left_out": {"comes_back": 0.75, "stays_away": 0.25},
        "reseeded": {"comes_back": 0.78, "stays_away": 0.22},
        "bisection": {"few_samples": 0.1, "many_samples": 0.1, "none_needed": 0.8},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.08, "not_cured": 0.92},
        "lower_rate": {"cured": 0.08, "not_cured": 0.92},
        "fresh_moments": {"cured": 0.08, "not_cured": 0.92},
        "repaired_moments": {"cured": 0.08, "not_cured": 0.92},
        "other_split": {"same": 0.8, "differs": 0.2},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.9, "differs": 0.1},
        "inspection": {"sound": 0.88, "moments_damaged": 0.07, "weights_damaged": 0.05},
    }
