"""The mix of data changed at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Born, Cause


@dataclass(frozen=True, kw_only=True)
class DataMixChange(Cause):
    """Another source, language or weight of sources from one step on. Gradients grow before v knows
    them, so that RMS_t and the update rise, and the loss on what was trained before gets worse.

    Reference: GLM-130B's log (5 % of another kind of data at step 22,800, NaN at 22,900; ramping
    both the mix and the rate over 2,000 steps mended it). SIGNATURES experiment 5: RMS_t at once,
    the update one to three steps later, the loss of the old domain one to seven; a ramp over 60
    steps costs .04 to .16 instead of .5 to 1.3.
    """

    name: ClassVar[str] = "data_mix_change"
    predicts: ClassVar[str] = (
        "RMS_t and the gradient at once, the loss of the new mix with "
        "them; then the update, then the loss on the old domain"
    )
    born: ClassVar[tuple[Born, ...]] = (Born.FORWARD,)
    lead: ClassVar[str] = "0 to 7 steps; in GLM-130B 100 to the NaN"
    recurs: ClassVar[str] = "as long as the mix stays"
    contradicts: ClassVar[str] = "samples from the same sources as before"
    settled_by: ClassVar[str] = (
        "the window left out does not help, other data from before the change does"
    )
    remedies: ClassVar[tuple[str, ...]] = (
        "a ramp of the mix, with the rate warmed up again",
        "a smaller beta2",
        "the old mix back",
    )
    no_help: ClassVar[tuple[str, ...]] = (
        "setting single batches aside",
        "a rollback without a change",
    )
    data_may_be_at_fault: ClassVar[bool] = True
    prior: ClassVar[float] = -1.2
    expects: ClassVar[Mapping[str, float]] = {
        "new_source": 0.85,
        "samples_differ": 0.85,
        "data_changed": 0.4,
        "configuration_changed": 0.25,
        "loss_moved_first": 0.6,
        "loss_level_shifted": 0.4,
        "lasting": 0.75,
        "brief": 0.05,
        "rms_t_rose": 0.75,
        "gradient_moved": 0.8,
        "update_moved_first": 0.04,
        "after_start": 0.35,
        "few_samples_carry_the_loss": 0.06,
        "nonfinite": 0.08,
        "rate_jumped": 0.05,
        "setting_data_aside_did_not_help": 0.75,
        "rollback_did_not_help": 0.8,
        "weight_jumped": 0.01,
        "scaled_together": 0.05,
        "embedding_gradient_dominates": 0.35,
    }
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.93, "stays_away": 0.07},
        "earlier_state": {"comes_back": 0.85, "stays_away": 0.15},
        "clean_control": {"comes_back": 0.04, "stays_away": 0.96},
        "other_batch": {"comes_back": 0.2, "stays_away": 0.8},
        "left_out": {"comes_back": 0.75, "stays_away": 0.25},
        "reseeded": {"comes_back": 0.88, "stays_away": 0.12},
        "bisection": {"few_samples": 0.2, "many_samples": 0.7, "none_needed": 0.1},
        "fp32_forward": {"cured": 0.08, "not_cured": 0.92},
        "fp64_attention": {"cured": 0.06, "not_cured": 0.94},
        "fp64_loss": {"cured": 0.06, "not_cured": 0.94},
        "lower_rate": {"cured": 0.35, "not_cured": 0.65},
        "fresh_moments": {"cured": 0.25, "not_cured": 0.75},
        "repaired_moments": {"cured": 0.12, "not_cured": 0.88},
        "other_split": {"same": 0.9, "differs": 0.1},
        "twice": {"same_bits": 0.92, "differs": 0.08},
        "eager": {"same": 0.92, "differs": 0.08},
        "inspection": {"sound": 0.86, "moments_damaged": 0.08, "weights_damaged": 0.06},
    }
