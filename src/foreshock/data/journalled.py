"""What a journal says of the data: its records, checked, and taken in."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from foreshock.core.errors import StreamError
from foreshock.core.reading import from_json_text, from_json_whole
from foreshock.data.entry import Key, LedgerEntry, keys_from_json
from foreshock.data.ledger import Ledger
from foreshock.data.order import Order
from foreshock.data.positions import PositionOrder, order_from
from foreshock.data.reflow import Outcome, Reflow

KINDS: Final = frozenset(
    {"quarantined", "rejected", "released", "reflow_started", "reflowed", "data_reordered"}
)
"""Kinds of records that say something of the data."""


def apply_record(record: Mapping[str, Any], ledger: Ledger, order: Order | PositionOrder) -> None:
    """Take in a record; kinds other than `KINDS` pass by. A second time changes nothing.

    Records must come in the journal's order: a window means the samples that stood there
    when it was set aside.

    Raises:
        StreamError: the record is malformed, or contradicts what came before it.
    """
    try:
        match record["kind"]:
            case "quarantined" | "rejected":
                ledger.add(LedgerEntry.from_json(record["entry"]))
            case "released":
                ledger.release(*released_from(record))
            case "reflow_started":
                ledger.start_reflow(Reflow.from_json(record))
            case "reflowed":
                ledger.settle(Outcome.from_json(record))
            case "data_reordered":
                reorder(ledger, order, _whole(record["position"]), from_json_whole(record["seed"]))
            case _:
                pass
    except (KeyError, TypeError, ValueError) as error:
        raise StreamError(f"not a record of the data: {record!r:.200} ({error!s:.200})") from error


def check_record(record: Mapping[str, Any]) -> None:
    """Refuse a record of `KINDS` that no run writes, by itself and without an order.

    Raises:
        KeyError, StreamError, TypeError, ValueError: a field is missing or malformed.
    """
    match record["kind"]:
        case "quarantined" | "rejected":
            LedgerEntry.from_json(record["entry"])
        case "released":
            released_from(record)
        case "reflow_started":
            Reflow.from_json(record)
        case "reflowed":
            Outcome.from_json(record)
        case "data_reordered":
            _whole(record["position"])
            from_json_whole(record["seed"])
        case _:
            pass


def released_from(record: Mapping[str, Any]) -> tuple[str, tuple[Key, ...] | None, int]:
    """The arguments of `Ledger.release` in a `released` record.

    Raises:
        KeyError, TypeError, ValueError: a field is missing or malformed.
    """
    ids = None if record["ids"] is None else keys_from_json(record["ids"])
    return from_json_text(record["entry_id"]), ids, _whole(record["position"])


def reorder(ledger: Ledger, order: Order | PositionOrder, position: int, seed: int) -> None:
    """See `Order.reorder_from`; what was set aside stays so wherever it stands from now on.

    Raises:
        StreamError: the order cannot be changed, or the position lies outside it.
    """
    if not isinstance(order, Order):
        raise StreamError("the order of a foreign loader cannot be changed from outside")
    if order.reorder_from(position, seed):
        ledger.hold_from(position)


def data_of(
    description: Mapping[str, Any], records: Iterable[Mapping[str, Any]]
) -> tuple[Order | PositionOrder, Ledger]:
    """The order and the ledger of a run as its records leave them.

    Raises:
        StreamError: the description or a record is malformed.
    """
    order = order_from(description)
    ledger = Ledger(order)
    for record in records:
        apply_record(record, ledger, order)
    return order, ledger


def order_at(
    description: Mapping[str, Any],
    records: Iterable[Mapping[str, Any]],
    attempt: int,
    step: int,
) -> Order | PositionOrder:
    """The order that held when a step of an attempt trained.

    Raises:
        StreamError: the description or a record is malformed.
    """
    order = order_from(description)
    unused = Ledger(order)
    for record in records:
        if record.get("kind") == "data_reordered":
            try:
                before = (_whole(record["attempt"]), _whole(record["step"])) < (attempt, step)
            except (KeyError, ValueError) as error:
                raise StreamError(f"not a record of the data: {record!r:.200}") from error
            if before:
                apply_record(record, unused, order)
    return order


def _whole(value: object) -> int:
    found = from_json_whole(value)
    if found < 0:
        raise ValueError(f"{found} is below 0")
    return found
