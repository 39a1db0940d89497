"""What came after an incident's plans: pauses, what is needed of its data, data to strengthen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foreshock.report.clean import real, whole
from foreshock.report.words import count, duration, figure


@dataclass(kw_only=True)
class Pause:
    """The run waited for a person.

    Attributes:
        timeout_secs: how long it would have waited.
        waited_secs: how long it did; None while it waits, or if nobody came.
        over: whether it waits no more.
    """

    attempt: int
    step: int
    timeout_secs: float
    waited_secs: float | None = None
    over: bool = False

    @property
    def ending(self) -> str:
        """What became of it, in words."""
        if self.waited_secs is not None:
            return f"lifted by a person after {duration(self.waited_secs)}"
        if self.over:
            return f"nobody came within {duration(self.timeout_secs)}"
        return f"the run waits, for {duration(self.timeout_secs)} in all"


@dataclass(frozen=True, kw_only=True)
class Strengthen:
    """Capabilities that going back does not cure, and the data that teaches them."""

    step: int
    capabilities: tuple[str, ...]
    data: str


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What of an incident's data is needed to bring it back.

    Attributes:
        times_fewer: tokens lost by the fixed practice over those lost, at its least and most.
    """

    verdict: str
    num_needed: int
    num_undecided: int
    num_given_back: int
    num_replays: int
    times_fewer: tuple[float, ...]

    @property
    def words(self) -> str:
        """The same in a sentence or two."""
        text = (
            f"{self.verdict}. {count(self.num_needed, 'sample')} needed, "
            f"{self.num_undecided:,} undecided, {self.num_given_back:,} given back, by "
            f"{count(self.num_replays, 'replay')}."
        )
        if self.times_fewer:
            fewer = " to ".join(figure(one) for one in self.times_fewer)
            text += f" Skipping 200 to 500 batches would have lost {fewer} times as many tokens."
        return text[:1].upper() + text[1:]


@dataclass(kw_only=True)
class Aftermath:
    """Of one incident; see the module."""

    pauses: list[Pause] = field(default_factory=list[Pause])
    strengthen: list[Strengthen] = field(default_factory=list[Strengthen])
    needed: Needed | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "pauses": [vars(one) for one in self.pauses],
            "strengthen": [vars(one) for one in self.strengthen],
            "needed": None if self.needed is None else vars(self.needed),
        }


def pause_of(record: Mapping[str, Any]) -> Pause:
    """A `paused` record."""
    return Pause(
        attempt=whole(record["attempt"]),
        step=whole(record["step"]),
        timeout_secs=real(record["timeout_secs"]),
    )


def strengthen_of(record: Mapping[str, Any]) -> Strengthen:
    """A `strengthen_data` record."""
    return Strengthen(
        step=whole(record["step"]),
        capabilities=tuple(map(str, _listed(record["capabilities"]))),
        data=str(record["data"]),
    )


def needed_of(record: Mapping[str, Any]) -> Needed:
    """A `minimized` record."""
    given_back = {
        (str(source), whole(index))
        for keys in record["given_back"].values()
        for source, index in _listed(keys)
    }
    fewer = record["tokens"].get("times_fewer")
    return Needed(
        verdict=str(record["verdict"]),
        num_needed=len(_listed(record["needed"])),
        num_undecided=len(_listed(record["undecided"])),
        num_given_back=len(given_back),
        num_replays=whole(record["num_replays"]),
        times_fewer=() if fewer is None else tuple(map(real, _listed(fewer))),
    )


def _listed(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {value!r:.80}")
    return value
