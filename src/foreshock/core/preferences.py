"""Which rungs a cause asks for before the general ladder."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from foreshock.core.errors import ConfigError
from foreshock.core.ladder import WATCH, Rung
from foreshock.core.nearest import did_you_mean

_DATA: Final = ("skip", "rollback", "rollback", "rollback", "rollback")
_RATE: Final = ("skip", "cap_lr", "lower_lr", "lower_lr", "lower_lr")
_RANGE: Final = ("skip", "rollback", "tighten_clip")
_MOMENTS: Final = ("skip", "rollback", "reset_moments")
_GROWTH: Final = ("skip", "rollback_further", "lower_lr")

PREFERENCES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "benign": (WATCH,),
        "logging_artefact": (WATCH,),
        "data_batch": _DATA,
        "repeated_text": _DATA,
        "data_order": _DATA,
        "data_mix_change": ("skip", "rollback", "rollback", "rollback", "lower_lr"),
        "lr_too_high": _RATE,
        "schedule_lost": _RATE,
        "warmup_too_short": ("skip", "lower_lr", "lower_lr", "lower_lr"),
        "numeric_overflow": _RANGE,
        "fp16_forward_overflow": _RANGE,
        "fp16_gradient_overflow": _RANGE,
        "optimizer_state_corrupt": _MOMENTS,
        "optimizer_state_lost": _MOMENTS,
        "stale_second_moment": ("skip", "rollback", "lower_beta2"),
        "embedding_gradient": ("skip", "rollback", "shrink_embeddings"),
        "attention_logit_growth": _GROWTH,
        "update_norm_growth": _GROWTH,
        "edge_of_stability": ("skip", "perturb_order", "rollback_further"),
        "weight_corruption": ("rollback", "rollback"),
        "rank_desync": ("rollback", "rollback"),
    }
)
"""By cause; one that is not here (`unknown`, those of others) takes the ladder as it is.

Bad data ends, so that going back to one state with more set aside is tried to its end; a mix
that has changed does not end, and wants a lower rate meanwhile. A rate that jumped is kept to
what it was (`cap_lr`, which is passed over where none did), any other that is too high is
lowered at once. Moments, weights and overflows are first given what a rollback already puts
right. What grew over many steps is in the newest snapshot too. Where only the seed decides, an
exact replay comes to the same end, another order need not. A number that is only logged wrong
asks for nothing. No rung mends low precision, a loss that is counted wrong, or what a start has
changed: they take the ladder, and the diagnosis says what a person must do. Our choice."""


def escalation(
    preferred: Sequence[str], ladder: Sequence[str], rungs: Mapping[str, Rung]
) -> Iterator[tuple[str, int]]:
    """The rungs as they are come to: (name, how often it may have been tried before).

    First the preferred ones, each as often as it is named, then the ladder, each rung up to
    its tries, those of the preference included.

    >>> from foreshock.core.ladder import rung
    >>> rungs = {"a": rung("x", tries=2), "b": rung("y"), "halt": rung("halt")}
    >>> list(escalation(["b"], ["a", "b", "halt"], rungs))
    [('b', 0), ('a', 1), ('b', 0), ('halt', 0)]
    """
    for place, name in enumerate(preferred):
        yield name, preferred[:place].count(name)
    for name in ladder:
        yield name, rungs[name].tries - 1


def order_of(preferred: Sequence[str], ladder: Sequence[str]) -> list[str]:
    """The rungs in order of escalation, each where it is come to first.

    >>> order_of(["skip", "rollback", "reset"], ["skip", "rollback", "further", "reset", "halt"])
    ['skip', 'rollback', 'reset', 'further', 'halt']
    """
    return list(dict.fromkeys([*preferred, *ladder]))


def check_preferences(
    path: str, preferences: Mapping[str, Sequence[str]], rungs: Mapping[str, Rung]
) -> None:
    """Refuse preferences for rungs that do not exist.

    Raises:
        ConfigError: a rung is unknown, or `watch` does not stand alone.
    """
    for cause, preferred in preferences.items():
        for place, name in enumerate(preferred):
            where = f"{path}.{cause}[{place}]"
            if name not in rungs:
                near = did_you_mean(name, rungs) or "; it must be one of " + ", ".join(rungs)
                raise ConfigError(f"{where} is {name!r:.80}{near}")
            if name == WATCH and len(preferred) > 1:
                raise ConfigError(f"{where} is {WATCH!r}, which must stand alone")
