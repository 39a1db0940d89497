"""The contract of a sink: where a person is told of what was decided."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol


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


class Sink(ABC):
    """A kind of destination; a frozen keyword-only dataclass that holds its addresses.

    Attributes:
        name: unique within the family; the file bears the same name.
        on: kinds of notices that it is given; see `NoticeKind`.
    """

    name: ClassVar[str]
    on: tuple[str, ...]

    @abstractmethod
    def channels(self) -> Sequence[Channel]:
        """Its addresses, each checked as far as it can be without using it.

        Raises:
            ConfigError: an address cannot be used; names its place, not its text.
            MissingExtra: the package that delivers is not installed.
        """
