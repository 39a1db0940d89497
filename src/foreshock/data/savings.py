"""What incidents have cost, and what that saves against a fixed practice."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from foreshock.core.incident import Incident, IncidentBook
from foreshock.core.minimal import Tokens
from foreshock.data.entry import Key
from foreshock.data.ledger import Ledger
from foreshock.data.minimized import MINIMIZED, entries_of

_DAMAGE: Final = (AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, kw_only=True)
class IncidentCost:
    """What an incident has cost.

    Attributes:
        incident: its number.
        num_set_aside: distinct samples that its plans have set aside.
        num_held: those that are held now, for whatever reason.
        num_given_back: those that a search found not to be needed.
        minimized: whether there was a search for what is needed.
        tokens: trained again and set aside, against the fixed practice; what is held now
            counts, so that what came back does not.
    """

    incident: int
    num_set_aside: int
    num_held: int
    num_given_back: int
    minimized: bool
    tokens: Tokens

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-able values; `unit` is what the numbers of `tokens` count."""
        unit = "samples" if self.tokens.per_sample is None else "tokens"
        return {**vars(self), "unit": unit, "tokens": self.tokens.to_json()}


def costs(
    records: Sequence[Mapping[str, Any]], ledger: Ledger, samples_per_step: int
) -> list[IncidentCost]:
    """What each incident that has set data aside has cost, as it stands now.

    How many tokens a sample has is known where a search has looked at them; where none has,
    all is counted in samples.

    Args:
        records: the run's decisions, vetted.
        ledger: as they leave it.
        samples_per_step: of the run's steps; a search knows better.
    """
    searched: dict[int, Mapping[str, Any]] = {}
    for record in records:
        if record["kind"] == MINIMIZED and type(record.get("incident")) is int:
            searched[record["incident"]] = record
    found: list[IncidentCost] = []
    for incident in IncidentBook(records).incidents:
        entries = [entry for entry in entries_of(incident) if entry in ledger]
        if entries:
            record = searched.get(incident.id)
            found.append(_cost(incident, entries, record, ledger, samples_per_step))
    return found


def in_all(found: Sequence[IncidentCost]) -> dict[str, Any]:
    """The sums over incidents, by unit.

    `lost`, `palm` and `saved` as in `Tokens`, for each unit that occurs.
    """
    sums: dict[str, Any] = {}
    for one in found:
        told = one.to_json()
        into = sums.setdefault(told["unit"], {"incidents": 0, "lost": 0, "palm": [0, 0]})
        into["incidents"] += 1
        into["lost"] += one.tokens.lost
        into["palm"] = [a + b for a, b in zip(into["palm"], one.tokens.palm, strict=True)]
    for into in sums.values():
        into["saved"] = [palm - into["lost"] for palm in into["palm"]]
    return sums


def _cost(
    incident: Incident,
    entries: Sequence[str],
    record: Mapping[str, Any] | None,
    ledger: Ledger,
    samples_per_step: int,
) -> IncidentCost:
    aside = {key for entry in entries for key in ledger.samples(entry)}
    held = {key for key in aside if ledger.holds(*key)}
    given: set[Key] = set()
    per_sample: float | None = None
    if record is not None:
        with suppress(*_DAMAGE):  # a record that no run writes says nothing
            told = Tokens.from_json(record["tokens"])
            per_sample = told.per_sample
            samples_per_step = told.samples_per_step
            given = {(key[0], key[1]) for keys in record["given_back"].values() for key in keys}
    steps = [(one.step, one.plan.target_step) for one in incident.rollbacks]
    return IncidentCost(
        incident=incident.id,
        num_set_aside=len(aside),
        num_held=len(held),
        num_given_back=len(given),
        minimized=record is not None,
        tokens=Tokens.of(
            per_sample,
            samples_per_step=samples_per_step,
            steps_undone=sum(step - target for step, target in steps if target is not None),
            held_before=len(aside),
            held_after=len(held),
        ),
    )
