"""What is known of a cause besides its evidence: what helps, what would settle it, at what cost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from foreshock.catalog import members
from foreshock.core.cause import Candidate
from foreshock.core.errors import CatalogError
from foreshock.core.experiment import information

_SETTLE_STEPS: Final = 10
_MOST: Final = 3
_LEAST_NATS: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class Suggested:
    """An experiment that has not been made.

    Attributes:
        name: of the experiment.
        question: that it asks.
        nats: that it is expected to tell of the cause; 0.69 halves two that are alike.
        num_steps: about how many optimizer steps it trains.
    """

    name: str
    question: str
    nats: float
    num_steps: int


@dataclass(frozen=True, kw_only=True)
class Counsel:
    """What to do about a cause, and how to be surer of it.

    Attributes:
        remedies: what helps, the likeliest first.
        no_help: what is known not to.
        suggested: experiments that would tell most, for their cost.
    """

    remedies: tuple[str, ...] = ()
    no_help: tuple[str, ...] = ()
    suggested: tuple[Suggested, ...] = ()

    @property
    def costs(self) -> list[str]:
        """The experiments in words.

        >>> one = Suggested(name="replay", question="Does it come back?", nats=0.3, num_steps=17)
        >>> Counsel(suggested=(one,)).costs
        ['replay, about 17 steps: Does it come back?']
        """
        return [
            f"{one.name}, about {one.num_steps} steps: {one.question}" for one in self.suggested
        ]


def counsel_of(candidates: Iterable[Candidate], window_steps: int) -> Counsel:
    """What is known of the first of these candidates, and what would tell them apart.

    Nothing is known of a cause that is not installed here, and no experiment without torch.

    Args:
        candidates: ranked, the likeliest first.
        window_steps: from the onset of the incident to where it was acted upon.
    """
    ranked = tuple(candidates)
    causes = members("causes")
    top = causes.get(ranked[0].cause) if ranked else None
    if top is None:
        return Counsel()
    probabilities = {one.cause: one.probability for one in ranked}
    tables = {name: kind.outcomes for name, kind in causes.items()}
    steps = max(1, window_steps) + _SETTLE_STEPS
    found = [
        Suggested(
            name=name,
            question=kind.question,
            nats=information(probabilities, name, tuple(kind.outcomes), tables),
            num_steps=max(1, round(kind.windows * steps)),
        )
        for name, kind in _experiments().items()
    ]
    telling = [one for one in found if one.nats >= _LEAST_NATS]
    telling.sort(key=lambda one: (-one.nats / one.num_steps, one.name))
    return Counsel(
        remedies=tuple(top.remedies),
        no_help=tuple(top.no_help),
        suggested=tuple(telling[:_MOST]),
    )


def _experiments() -> Mapping[str, Any]:
    try:
        return members("experiments")
    except (ImportError, CatalogError):  # they train, and so need torch
        return {}
