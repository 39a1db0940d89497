"""The loss is divided by the wrong count."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class LossNormalisation(Cause):
    """A mean of means over micro-steps of unequal length, a sum where a mean was meant, a term that
    is not divided by the number of micro-steps, a gradient that is averaged twice. Loss or gradient
    norm are off by one factor; Adam hides it, clipping and epsilon do not.

    Reference: transformers#34191 and AutoModel#3359 (losses and terms that grow with the
    micro-steps); DeepSpeed#7718 and #6550 (gradient norms a third of what they are).
    """

    name: ClassVar[str] = "loss_normalisation"
    predicts: ClassVar[str] = (
        "loss or gradient norm times one factor from one step on, often "
        "after a change of code or accumulation; updates of Adam hardly "
        "move"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.FORWARD,)
    lead: ClassVar[str] = "0 steps"
    recurs: ClassVar[str] = "in every step"
    contradicts: ClassVar[str] = "another accumulation split gives the same loss and gradient"
    settled_by: ClassVar[str] = "the same global batch in another accumulation split"
    remedies: ClassVar[tuple[str, ...]] = (
        "one count of tokens for the whole global batch",
        "a release in which it is mended",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "a lower rate",
        "setting data aside",
        "a rollback alone",
    )
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.5
    expects: ClassVar[Mapping[str, float]] = {
        "constant_factor": 0.5,
        "loss_level_shifted": 0.3,
        "after_start": 0.45,
        "code_changed": 0.3,
        "packages_changed": 0.25,
        "configuration_changed": 0.3,
        "world_changed": 0.2,
        "loss_moved_first": 0.75,
        "update_moved": 0.15,
        "update_moved_first": 0.03,
        "lasting": 0.93,
        "brief": 0.03,
        "recovering": 0.05,
        "nonfinite": 0.03,
        "rate_jumped": 0.03,
        "weight_jumped": 0.01,
        "few_samples_carry_the_loss": 0.06,
        "rollback_did_not_help": 0.93,
        "scaled_together": 0.75,
        "loss_at_uniform": 0.4,
        "gradient_moved": 0.9,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.93, "stays_away": 0.07},
        "earlier_state": {"comes_back": 0.92, "stays_away": 0.08},
        "clean_control": {"comes_back": 0.88, "stays_away": 0.12},
        "other_batch": {"comes_back": 0.92, "stays_away": 0.08},
        "left_out": {"comes_back": 0.92, "stays_away": 0.08},
        "reseeded": {"comes_back": 0.92, "stays_away": 0.08},
        "bisection": {"few_samples": 0.08, "many_samples": 0.08, "none_needed": 0.84},
        "fp32_forward": {"cured": 0.06, "not_cured": 0.94},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.1, "not_cured": 0.9},
        "fresh_moments": {"cured": 0.1, "not_cured": 0.9},
        "repaired_moments": {"cured": 0.08, "not_cured": 0.92},
        "other_split": {"same": 0.2, "differs": 0.8},
        "twice": {"same_bits": 0.93, "differs": 0.07},
        "eager": {"same": 0.9, "differs": 0.1},
        "inspection": {"sound": 0.88, "moments_damaged": 0.07, "weights_damaged": 0.05},
    }
