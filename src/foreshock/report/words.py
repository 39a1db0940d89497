"""The sentences of a report: short, exact, and never more certain than the journal."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from foreshock.core.incident import Outcome

OPEN: Final = "open"
UNFINISHED: Final = ("open", "stopped")
"""States of a run from which it may go on by itself."""
"""The outcome of an incident that has not ended."""


def lead(first_mover: str, onset_step: int, loss_moved_step: int | None) -> str:
    """Which series moved first, and how long before the loss.

    >>> lead("update_ratio/global", 80, 81)
    'update_ratio/global moved first, 1 step before the loss'
    >>> lead("grad_norm/global", 80, None)
    'grad_norm/global moved first; the loss had not moved when Foreshock acted'
    """
    if first_mover.partition("/")[0] == "loss":
        return "the loss itself moved first"
    if loss_moved_step is None:
        return f"{first_mover} moved first; the loss had not moved when Foreshock acted"
    ahead = loss_moved_step - onset_step
    if ahead <= 0:
        return f"{first_mover} moved in the same step as the loss"
    return f"{first_mover} moved first, {count(ahead, 'step')} before the loss"


def count(number: int, thing: str) -> str:
    """A number with its noun.

    >>> count(1, "step"), count(1200, "step")
    ('1 step', '1,200 steps')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def plain(name: str) -> str:
    """A component's name as words.

    >>> plain("data_batch")
    'data batch'
    """
    return name.replace("_", " ")


def figure(value: float) -> str:
    """A measured value, short.

    >>> figure(89511.8), figure(0.0123456), figure(float("nan")), figure(float("-inf"))
    ('8.951e+04', '0.01235', 'NaN', '-Inf')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return f"{value:.4g}"


def percent(share: float) -> str:
    """A probability; never 0 % or 100 % for what is neither.

    >>> percent(0.9029), percent(0.0003), percent(0.9998)
    ('90%', '<1%', '>99%')
    """
    if 0 < share < 0.005:
        return "<1%"
    if 0.995 <= share < 1:
        return ">99%"
    return f"{share:.0%}"


def moment(seconds: float | None) -> str:
    """A point in time, in UTC; empty if there is none.

    >>> moment(0.0), moment(None), moment(1e300)
    ('1970-01-01 00:00 UTC', '', '')
    """
    if seconds is None:
        return ""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return ""


def duration(seconds: float) -> str:
    """A length of time.

    >>> duration(9.5), duration(4000), duration(200000)
    ('9.5 s', '1 h 06 min', '2 d 7 h')
    """
    if not 0 <= seconds < 1e10:
        return ""
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def size(num_bytes: int) -> str:
    """A number of bytes.

    >>> size(999), size(1_500_000), size(3 << 40)
    ('999 bytes', '1.5 MB', '3.3 TB')
    """
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    value, units = float(num_bytes), ["kB", "MB", "GB", "TB"]
    for unit in units:
        value /= 1000
        if value < 1000 or unit == units[-1]:
            return f"{value:.2g} {unit}" if value < 100 else f"{value:,.0f} {unit}"
    raise AssertionError


def how_it_ended(outcome: str, *, went_back: bool, num_probes: int, fell: bool = False) -> str:
    """What became of an incident, as the end of a sentence.

    Args:
        outcome: of the incident.
        went_back: whether a rollback was part of it.
        num_probes: capabilities that were compared at its end.
        fell: whether the last look at them found one worse.

    >>> how_it_ended("recovered", went_back=True, num_probes=2)
    'was undone, and the model passed its probes'
    """
    match outcome:
        case Outcome.RECOVERED if fell:
            how = "was undone" if went_back else "passed without going back"
            return f"{how}, but a capability fell later, and nothing older helps"
        case Outcome.RECOVERED if went_back and num_probes:
            return "was undone, and the model passed its probes"
        case Outcome.RECOVERED if went_back:
            return "was undone; the model was not probed"
        case Outcome.RECOVERED:
            return "passed without going back"
        case Outcome.HALTED:
            return "could not be cured"
        case "open" if went_back:
            return "was undone and is not verified yet"
        case _:
            return "is still open"


def verdict(state: str, step: int, incidents: Sequence[tuple[str, str, int, str]]) -> str:
    """A run in one sentence.

    Args:
        state: "finished", "halted", "stopped" or "open".
        step: where it stands.
        incidents: of each its outcome, cause, onset step and ending (`how_it_ended`).

    >>> verdict("finished", 2000, [])
    'Finished at step 2,000; nothing went wrong.'
    >>> verdict("open", 812, [("open", "lr_too_high", 640, "is still open")])
    'Running or cut off at step 812; one incident (lr too high, step 640) is still open.'
    >>> verdict("halted", 0, [])
    'Halted at step 0 and handed to a person, without an incident.'
    """
    begin = {
        "finished": f"Finished at step {step:,}",
        "halted": f"Halted at step {step:,} and handed to a person",
        "stopped": f"Stopped by the system at step {step:,}, to go on from there",
        "open": f"Running or cut off at step {step:,}",
    }[state]
    if not incidents and state == "halted":
        return f"{begin}, without an incident."
    if not incidents:
        return (
            f"{begin}; nothing {'has gone wrong so far' if state in UNFINISHED else 'went wrong'}."
        )
    if len(incidents) == 1:
        _, cause, onset, ending = incidents[0]
        return f"{begin}; one incident ({plain(cause)}, step {onset:,}) {ending}."
    outcomes = [outcome for outcome, *_ in incidents]
    if set(outcomes) == {Outcome.RECOVERED.value}:
        return f"{begin}; {len(incidents)} incidents, all recovered."
    parts = [f"{outcomes.count(one)} {one}" for one in dict.fromkeys(outcomes)]
    return f"{begin}; {len(incidents)} incidents: {', '.join(parts)}."
