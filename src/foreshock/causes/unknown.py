"""Not one of the causes that can be told apart here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.cause import Cause


@dataclass(frozen=True, kw_only=True)
class Unknown(Cause):
    """The measure of all others: it stands at log-odds 0 and no evidence moves it.

    A cause that the symptoms do not lift above zero is not named with confidence.
    """

    name: ClassVar[str] = "unknown"
    predicts: ClassVar[str] = "nothing in particular"
    contradicts: ClassVar[str] = "any cause with evidence of its own"
    settled_by: ClassVar[str] = "replay the window exactly, then one change at a time"
    remedies: ClassVar[tuple[str, ...]] = (
        "the experiments that tell most, before anything is changed for good",
        "back to the newest healthy state, step by step further if it returns",
    )
    data_may_be_at_fault: ClassVar[bool] = True
    prior: ClassVar[float] = 0.0
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "replay": {"comes_back": 0.6, "stays_away": 0.4},
        "earlier_state": {"comes_back": 0.45, "stays_away": 0.55},
        "clean_control": {"comes_back": 0.3, "stays_away": 0.7},
        "other_batch": {"comes_back": 0.45, "stays_away": 0.55},
        "left_out": {"comes_back": 0.45, "stays_away": 0.55},
        "reseeded": {"comes_back": 0.6, "stays_away": 0.4},
        "bisection": {"few_samples": 0.25, "many_samples": 0.25, "none_needed": 0.5},
        "fp32_forward": {"cured": 0.15, "not_cured": 0.85},
        "fp64_attention": {"cured": 0.1, "not_cured": 0.9},
        "fp64_loss": {"cured": 0.1, "not_cured": 0.9},
        "lower_rate": {"cured": 0.3, "not_cured": 0.7},
        "fresh_moments": {"cured": 0.18, "not_cured": 0.82},
        "repaired_moments": {"cured": 0.15, "not_cured": 0.85},
        "other_split": {"same": 0.85, "differs": 0.15},
        "twice": {"same_bits": 0.75, "differs": 0.25},
        "eager": {"same": 0.85, "differs": 0.15},
        "inspection": {"sound": 0.78, "moments_damaged": 0.12, "weights_damaged": 0.1},
    }
