"""The contract of a sink: where people are told of what was decided, or see a run mirrored."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

from foreshock.core.errors import ConfigError
from foreshock.core.mirrored import Mirrored, MirroredRun
from foreshock.core.nearest import did_you_mean


class NoticeKind(StrEnum):
    """What a person may want to be told of."""

    INCIDENT_OPENED = "incident_opened"
    PLAN = "plan"
    PAUSED = "paused"
    VERIFICATION_FAILED = "verification_failed"
    RECOVERED = "recovered"
    HALTED = "halted"
    ADVICE = "advice"


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A message to a person: what happened, what is being done, what is asked of them."""

    kind: NoticeKind
    title: str
    body: str

    @property
    def urgent(self) -> bool:
        """Whether nothing goes on until someone acts."""
        return self.kind in (NoticeKind.HALTED, NoticeKind.PAUSED)


class NotSentError(Exception):
    """A notice was not delivered. Its text holds no address and no secret."""


class Channel(Protocol):
    """One address that notices go to. Used by one thread, which may wait for it."""

    @property
    def label(self) -> str:
        """What to call it where others read: no address, no secret."""
        ...

    def send(self, notice: Notice) -> None:
        """Deliver a notice, and wait until it is.

        Raises:
            NotSentError: it was not delivered. Of any other error only the type is told.
        """
        ...


class NotMirroredError(Exception):
    """A mirror did not take what it was given. Its text holds no address and no secret."""


class Mirror(Protocol):
    """One place where a run is mirrored. The journal stays the truth; a mirror may lack steps.

    Every method but `adopt` is called by one thread of its own, which may wait as long as it
    likes: what it cannot take in time is dropped, and counted. What fails is tried again.
    """

    @property
    def label(self) -> str:
        """What to call it where others read: no address, no secret."""
        ...

    def adopt(self) -> None:
        """Look whether the loop has a logger of its own already, which is used then.

        Called by the training thread, once, at the first step. It must not wait.
        """
        ...

    def open(self) -> None:
        """Get ready, and wait until it is.

        Raises:
            NotMirroredError: it cannot. Of any other error only the type is told.
        """
        ...

    def take(self, said: Sequence[Mirrored]) -> None:
        """Take in what was said, in the order in which it happened.

        After a failure it is given the same again, so that it may see some of it twice.

        Raises:
            NotMirroredError: it did not. Of any other error only the type is told.
        """
        ...

    def close(self) -> None:
        """Write what is left, and let go of what `open` made. Never of what was adopted."""
        ...


class Sink(ABC):
    """A kind of destination; a frozen keyword-only dataclass that holds its addresses.

    It tells people of decisions (`channels`), or mirrors the run (`mirrors`), or both.

    Attributes:
        name: unique within the family; the file bears the same name.
        on: kinds of notices that it is given; see `NoticeKind`.
    """

    name: ClassVar[str]
    on: tuple[str, ...]

    def channels(self) -> Sequence[Channel]:
        """Addresses that notices go to, each checked as far as it can be without using it.

        Raises:
            ConfigError: an address cannot be used; names its place, not its text.
            MissingExtra: the package that delivers is not installed.
        """
        return ()

    def mirrors(self, run: MirroredRun) -> Sequence[Mirror]:
        """Places where the run is mirrored, each checked as far as it can be without using it.

        Raises:
            ConfigError: a place cannot be used.
            MissingExtra: the package that writes there is not installed.
        """
        return ()


@dataclass(frozen=True, kw_only=True)
class MirrorSink(Sink):
    """A destination that mirrors a run: readings, thresholds, alarms, and notices.

    Args:
        series: patterns of the series that are mirrored (`grad_norm/*`), as `fnmatch` reads
            them; every one by default. What is left out is not counted as dropped.
        every_steps: steps from one mirrored to the next. A step that alarmed is mirrored
            whatever its number.
        thresholds: whether thresholds are mirrored.
        on: kinds of notices that are mirrored; every one by default.

    Raises:
        ConfigError: there is no pattern, `every_steps` is below 1, or a kind does not exist.
    """

    series: tuple[str, ...] = ("*",)
    every_steps: int = 1
    thresholds: bool = True
    on: tuple[str, ...] = tuple(NoticeKind)

    def __post_init__(self) -> None:
        if not self.series:
            raise ConfigError(f"sinks.{self.name}.series has no pattern; ['*'] is every series")
        if self.every_steps < 1:
            raise ConfigError(
                f"sinks.{self.name}.every_steps is {self.every_steps}; it must be at least 1"
            )
        check_kinds(self.name, self.on)

    @abstractmethod
    def mirrors(self, run: MirroredRun) -> Sequence[Mirror]: ...


def check_kinds(sink: str, on: Sequence[str]) -> None:
    """Refuse kinds of notices that do not exist.

    Raises:
        ConfigError: one of them does not.
    """
    known = [str(kind) for kind in NoticeKind]
    for kind in on:
        if kind not in known:
            near = did_you_mean(kind, known) or "; there are " + ", ".join(known)
            raise ConfigError(f"sinks.{sink}.on has no kind {kind!r:.80}{near}")
