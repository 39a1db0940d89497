"""The run lives at the edge, and the seed decides."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class EdgeOfStability(Cause):
    """Curvature sits at what the rate allows: the same settings survive under one seed or order and
    diverge under another. A batch is to blame as little as the state, only both together; a spike
    is fast, and mostly without a forerunner.

    Reference: PaLM, https://arxiv.org/abs/2204.02311 (about 20 spikes with clipping on; the same
    batches from another checkpoint do not spike); Cohen et al. (2022),
    https://arxiv.org/abs/2207.14484 (preconditioned sharpness at 38 / lr for beta1 .9).
    """

    name: ClassVar[str] = "edge_of_stability"
    predicts: ClassVar[str] = (
        "loss and gradient norm jump together, with nothing before and nothing odd in the samples"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.FORWARD,)
    lead: ClassVar[str] = "0 to a few steps"
    recurs: ClassVar[str] = "at irregular intervals, elsewhere in the data"
    contradicts: ClassVar[str] = (
        "something that moved before; samples that differ; the same trouble under another seed"
    )
    settled_by: ClassVar[str] = (
        "the window in another order and with other seeds: it stays "
        "away, and so it does on an earlier state"
    )
    remedies: ClassVar[tuple[str, ...]] = (
        "back about 100 steps and on with other data (PaLM)",
        "another order of the same data",
        "a lower rate, qk-layernorm or z-loss for more distance",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "an exact replay",
        "cleaning the data of the window",
        "clipping, which was on",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.2
    expects: ClassVar[Mapping[str, float]] = {
        "loss_moved": 0.97,
        "loss_moved_first": 0.75,
        "gradient_moved": 0.95,
        "update_moved_first": 0.06,
        "few_samples_carry_the_loss": 0.1,
        "rate_jumped": 0.02,
        "rms_t_rose": 0.35,
        "after_start": 0.06,
        "recovering": 0.75,
        "weight_jumped": 0.01,
        "attention_logit_grew_first": 0.03,
        "nonfinite": 0.08,
        "embedding_gradient_dominates": 0.06,
        "first_moment_grew": 0.08,
        "constant_factor": 0.02,
        "only_the_metric": 0.03,
        "rate_off_schedule": 0.03,
        "rollback_did_not_help": 0.35,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.6, "stays_away": 0.4},
        "earlier_state": {"comes_back": 0.12, "stays_away": 0.88},
        "clean_control": {"comes_back": 0.1, "stays_away": 0.9},
        "other_batch": {"comes_back": 0.3, "stays_away": 0.7},
        "left_out": {"comes_back": 0.25, "stays_away": 0.75},
        "reseeded": {"comes_back": 0.15, "stays_away": 0.85},
        "bisection": {"few_samples": 0.3, "many_samples": 0.4, "none_needed": 0.3},
        "fp32_forward": {"cured": 0.25, "not_cured": 0.75},
        "fp64_attention": {"cured": 0.2, "not_cured": 0.8},
        "fp64_loss": {"cured": 0.12, "not_cured": 0.88},
        "lower_rate": {"cured": 0.65, "not_cured": 0.35},
        "fresh_moments": {"cured": 0.35, "not_cured": 0.65},
        "repaired_moments": {"cured": 0.2, "not_cured": 0.8},
        "other_split": {"same": 0.8, "differs": 0.2},
        "twice": {"same_bits": 0.85, "differs": 0.15},
        "eager": {"same": 0.85, "differs": 0.15},
        "inspection": {"sound": 0.85, "moments_damaged": 0.09, "weights_damaged": 0.06},
    }
