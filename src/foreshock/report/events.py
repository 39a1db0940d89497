"""What happened in an incident, in the order in which it did."""

from collections.abc import Sequence
from typing import NamedTuple


class Event(NamedTuple):
    """A point on an incident's timeline; `tone` is good, bad, act or empty."""

    attempt: int
    step: int
    title: str
    detail: str
    tone: str


def merged(events: Sequence[Event]) -> list[Event]:
    """Events of the same attempt and step that follow each other, told as one."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if last is None or (last.attempt, last.step) != (event.attempt, event.step):
            found.append(event)
            continue
        found[-1] = last._replace(
            title=f"{last.title}, {event.title[:1].lower()}{event.title[1:]}",
            detail="; ".join(filter(None, (last.detail, event.detail))),
            tone=event.tone or last.tone,
        )
    return found
