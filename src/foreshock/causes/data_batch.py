"""The batches themselves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class DataBatch(Cause):
    """Data unlike what came before: the loss on it is high before any update was wrong, and the
    gradient of that same step with it. The cause that people name first and prove least: without a
    finding in the samples it stays weak, and only the same batches on an older, clean state settle
    it.

    Reference: PaLM, https://arxiv.org/abs/2204.02311 (batches innocent on replay). SIGNATURES
    experiment 4: random bytes take the gradient norm to 11 times its size, and the loss is back by
    the seventh step with clip 1, the 27th without.
    """

    name: ClassVar[str] = "data_batch"
    predicts: ClassVar[str] = (
        "loss and gradient norm jump in the same step, lead 0; samples differ from those before"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.FORWARD,)
    lead: ClassVar[str] = "0 steps"
    recurs: ClassVar[str] = "until the bad data ends; again wherever it is trained"
    contradicts: ClassVar[str] = "the update moved first; the samples look like those before"
    settled_by: ClassVar[str] = "the batch alone on an earlier clean snapshot (PaLM's control)"
    remedies: ClassVar[tuple[str, ...]] = (
        "setting the window aside",
        "filters on the data",
        "clipping the gradient",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "lowering the rate for the whole run",
        "fresh optimizer moments",
    )
    data_may_be_at_fault: ClassVar[bool] = True
    prior: ClassVar[float] = -0.5
    expects: ClassVar[Mapping[str, float]] = {
        "loss_moved": 0.98,
        "loss_moved_first": 0.96,
        "gradient_moved": 0.95,
        "gradient_moved_first": 0.04,
        "update_moved_first": 0.01,
        "samples_differ": 0.9,
        "samples_repeat": 0.04,
        "new_source": 0.15,
        "few_samples_carry_the_loss": 0.45,
        "recovering": 0.45,
        "nonfinite": 0.05,
        "rate_jumped": 0.02,
        "gradient_grew_before": 0.05,
        "update_follows_rate": 0.02,
        "weight_jumped": 0.01,
        "moments_nonfinite": 0.02,
        "attention_logit_grew_first": 0.04,
        "only_the_metric": 0.03,
        "constant_factor": 0.02,
        "after_start": 0.08,
        "setting_data_aside_did_not_help": 0.1,
        "skipping_did_not_help": 0.35,
        "scaled_together": 0.05,
        "embedding_gradient_dominates": 0.25,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.95, "stays_away": 0.05},
        "earlier_state": {"comes_back": 0.92, "stays_away": 0.08},
        "clean_control": {"comes_back": 0.04, "stays_away": 0.96},
        "other_batch": {"comes_back": 0.08, "stays_away": 0.92},
        "left_out": {"comes_back": 0.06, "stays_away": 0.94},
        "reseeded": {"comes_back": 0.88, "stays_away": 0.12},
        "bisection": {"few_samples": 0.5, "many_samples": 0.4, "none_needed": 0.1},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.2, "not_cured": 0.8},
        "fresh_moments": {"cured": 0.12, "not_cured": 0.88},
        "repaired_moments": {"cured": 0.1, "not_cured": 0.9},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.92, "differs": 0.08},
        "inspection": {"sound": 0.86, "moments_damaged": 0.08, "weights_damaged": 0.06},
    }
