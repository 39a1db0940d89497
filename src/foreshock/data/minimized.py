"""What came of a search for the needed samples, left for the run that it is about.

The search runs beside the run, which alone writes its journal. So its finding, or why there is
none, is a request like those of a person, and as little trusted: every field is checked, and
held against what the journal says that the incident set aside.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from foreshock.core.errors import JournalError, StreamError
from foreshock.core.incident import Incident, IncidentBook, Outcome
from foreshock.core.minimal import Minimal
from foreshock.core.reading import from_json_text, from_json_whole
from foreshock.core.records import decode_line, encode_line
from foreshock.data.entry import Key
from foreshock.data.ledger import Ledger
from foreshock.data.order import Order
from foreshock.data.returns import Told, given_back, signed

MINIMIZED: Final = "minimized"
DROPPED: Final = "minimize_dropped"
_MAX_REASON: Final = 500
_DAMAGE: Final = (AttributeError, JournalError, KeyError, RecursionError, TypeError, ValueError)


@final
@dataclass(frozen=True, kw_only=True)
class Minimized:
    """A finding: which samples of an incident are needed, and which are given back.

    Args:
        request: sixteen hexadecimal digits that name it.
        found: the finding.
    """

    request: str
    found: Minimal

    def encode(self) -> bytes:
        """One line of strict JSON with its checksum."""
        told = {"request": self.request, "command": MINIMIZED, "found": self.found.to_json()}
        return encode_line(told)

    @classmethod
    def decode(cls, data: bytes) -> "Minimized":
        """Undo `encode`; the id is checked by whoever asks for it.

        Raises:
            StreamError: the data is anything else.
        """
        try:
            fields = fields_in(data, {"found"}, MINIMIZED)
            found = Minimal.from_json(fields["found"])
            return cls(request=from_json_text(fields["request"]), found=found)
        except _DAMAGE as error:
            raise StreamError(f"not a finding ({type(error).__name__}: {error!s:.200})") from error

    def must_wait(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Whether an incident is open: what is given back would disturb its recovery."""
        return IncidentBook(records).open is not None

    def records(
        self,
        ledger: Ledger,
        order: Any,
        position: int,
        journal: Sequence[Mapping[str, Any]],
    ) -> Told:
        """The records (kind, fields) that carry it out; journal each, then take it in.

        `minimized` is the last, so that a crash before it has all of it done again.

        Args:
            ledger: what is held.
            order: the run's order.
            position: the watermark of the run.
            journal: the run's records.

        Raises:
            StreamError: there was no such incident, it is not over or has gone on since, it
                did not set these samples aside, or the run's data cannot give them back.
        """
        if not isinstance(order, Order):
            raise StreamError("this run's data came from a loader, and cannot be minimized")
        found = self.found
        incident = _incident(found.incident, journal)
        if len(incident.plans) != found.num_plans:
            raise StreamError(
                f"incident {incident.id} went on since: it had {found.num_plans} plans, and has "
                f"{len(incident.plans)}"
            )
        _check_samples(found, ledger, entries_of(incident))
        told = given_back(ledger, found.given_back, position, order.total)
        return signed([*told, (MINIMIZED, found.to_json())], self.request)


@final
@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Why there is no finding: the search was tried, and is not tried again by itself.

    Args:
        request: sixteen hexadecimal digits that name it.
        incident: number of the incident.
        num_plans: plans that it had by then.
        reason: in words; cut where it is long.
    """

    request: str
    incident: int
    num_plans: int
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", self.reason[:_MAX_REASON])

    def encode(self) -> bytes:
        """One line of strict JSON with its checksum."""
        return encode_line({**vars(self), "command": DROPPED})

    @classmethod
    def decode(cls, data: bytes) -> "Dropped":
        """Undo `encode`; the id is checked by whoever asks for it.

        Raises:
            StreamError: the data is anything else.
        """
        try:
            fields = fields_in(data, {"incident", "num_plans", "reason"}, DROPPED)
            return cls(
                request=from_json_text(fields["request"]),
                incident=from_json_whole(fields["incident"]),
                num_plans=from_json_whole(fields["num_plans"]),
                reason=from_json_text(fields["reason"]),
            )
        except _DAMAGE as error:
            raise StreamError(f"not a request ({type(error).__name__}: {error!s:.200})") from error

    def must_wait(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Never."""
        del records
        return False

    def records(
        self,
        ledger: Ledger,
        order: Any,
        position: int,
        journal: Sequence[Mapping[str, Any]],
    ) -> Told:
        """See `Minimized.records`.

        Raises:
            StreamError: there was no such incident.
        """
        del ledger, order, position
        _incident(self.incident, journal)
        return [(DROPPED, vars(self).copy())]


def fields_in(data: bytes, names: Collection[str], command: str | None = None) -> dict[str, Any]:
    """The fields of a request: its id, its command and these, and no others.

    Args:
        data: one line of JSON with its checksum.
        names: of the other fields.
        command: that it must have; None is any.

    Raises:
        JournalError: the line is damaged.
        ValueError: its fields or its command are others.
    """
    fields = decode_line(data)
    named = {"request", "command", *names}
    if set(fields) != named or (command is not None and fields["command"] != command):
        raise ValueError(f"its fields are {sorted(fields)!r:.200}")
    return fields


def fields_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The finding in a `minimized` record, as `Minimal.from_json` reads it."""
    stamp = ("kind", "time", "attempt", "step", "request")
    return {name: value for name, value in record.items() if name not in stamp}


def entries_of(incident: Incident) -> list[str]:
    """The ids of the entries that an incident's plans have made."""
    return [
        f"plan{record.id}/{number}"
        for record in incident.plans
        for number, call in enumerate(record.plan.actions)
        if call.name == "quarantine"
    ]


def _incident(number: int, journal: Sequence[Mapping[str, Any]]) -> Incident:
    """The incident of this number, which must have been recovered from."""
    told = [one for one in IncidentBook(journal).incidents if one.id == number]
    if not told:
        raise StreamError(f"the run has no incident {number}")
    if told[-1].outcome is not Outcome.RECOVERED:
        raise StreamError(f"incident {number} was not recovered from, or is open again")
    return told[-1]


def _check_samples(found: Minimal, ledger: Ledger, entries: Sequence[str]) -> None:
    """Refuse samples that the incident has not set aside."""
    known = {entry for entry in entries if entry in ledger}
    if strange := sorted(set(found.given_back) - known):
        raise StreamError(f"incident {found.incident} has made no entry {strange[0]!r:.80}")
    samples = {entry: set(ledger.samples(entry)) for entry in known}
    everything = set[Key]().union(*samples.values())
    wrong = {*found.needed, *found.undecided} - everything
    for entry, keys in found.given_back.items():
        wrong |= set(keys) - samples[entry]
    if wrong:
        raise StreamError(f"incident {found.incident} has not set aside {sorted(wrong)[:3]!r:.200}")
