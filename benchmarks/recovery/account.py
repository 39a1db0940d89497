"""What a run has to show for itself: its incidents, its samples; and what it has lost of them.

Read from the run directory alone, by the code here where it matters: which step of which
attempt counts is worked out anew, not asked of the Guard.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from foreshock.core.incident import IncidentBook
from foreshock.data.journalled import data_of, order_at
from foreshock.durable import Disk
from foreshock.journal import Journal, RunView

Sample = tuple[str, int]
NEITHER = "neither trained nor were set aside"


class Account(NamedTuple):
    """A run, as its directory shows it.

    Attributes:
        ended: whether its last record says that it was finished.
        incidents: each with its outcome, plans, actions and verification.
        plan_ids: of the plans, as they were recorded; and of those that were carried out.
        aside: (source, index) of every sample set aside.
        trained: by step, the (source, index) of the samples that the steps which count trained.
        all_samples: everything the stream has.
    """

    ended: bool
    incidents: list[Any]
    plan_ids: tuple[list[int], list[int]]
    aside: list[Sample]
    trained: dict[int, list[Sample]]
    all_samples: int


def account_of(disk: Disk, run_dir: Path) -> Account:
    """Read a run's account; see `foreshock.Journal.read` for what may be wrong with it."""
    view = Journal.read(disk, run_dir)
    description: Any = view.identity["stream"]
    order, ledger = data_of(description, view.records)
    kinds = [record["kind"] for record in view.records]
    return Account(
        ended=bool(kinds) and kinds[-1] == "run_finished",
        incidents=_incidents(view),
        plan_ids=(_ids(view, "plan"), _ids(view, "plan_done")),
        aside=sorted({key for one in ledger.entries for key in ledger.samples(one.entry_id)}),
        trained=_trained(view, description),
        all_samples=int(order.total or 0),
    )


def losses(expected: Account, found: Account) -> list[str]:
    """What a run has lost or done twice, against one that nobody disturbed; empty is good."""
    said: list[str] = []
    if not found.ended:
        said.append("the run did not come to its end")
    for what, ids in zip(("recorded", "carried out"), found.plan_ids, strict=True):
        if ids != list(range(1, len(ids) + 1)):
            said.append(f"plans were {what} as {ids}")
    if found.incidents != expected.incidents:
        said.append(f"incidents differ: {found.incidents} and not {expected.incidents}")
    if found.aside != expected.aside:
        said.append(_difference("set aside", expected.aside, found.aside))
    if found.trained.keys() != expected.trained.keys():
        odd = sorted(found.trained.keys() ^ expected.trained.keys())
        said.append(f"steps {odd[:8]} trained in one run only")
    for step in sorted(found.trained.keys() & expected.trained.keys()):
        if found.trained[step] != expected.trained[step]:
            said.append(_difference(f"step {step}", expected.trained[step], found.trained[step]))
            break
    return said + irregular(found)


def irregular(found: Account) -> list[str]:
    """What is wrong with a run by itself: a sample trained twice, or never without being aside.

    For streams whose every sample has its turn once.
    """
    counted = Counter(sample for samples in found.trained.values() for sample in samples)
    said: list[str] = []
    if twice := sorted(sample for sample, times in counted.items() if times > 1):
        said.append(f"{len(twice)} samples trained twice, {twice[0]} among them")
    if both := sorted(counted.keys() & set(found.aside)):
        said.append(f"{len(both)} samples trained and are set aside, {both[0]} among them")
    missing = found.all_samples - len(counted.keys() | set(found.aside))
    if missing:
        said.append(f"{missing} samples {NEITHER}")
    return said


def _difference(what: str, expected: list[Sample], found: list[Sample]) -> str:
    lost = sorted(set(expected) - set(found))
    more = sorted(set(found) - set(expected))
    return f"{what}: {len(lost)} samples are missing {lost[:3]}, {len(more)} are new {more[:3]}"


def _ids(view: RunView, kind: str) -> list[int]:
    return [int(record["plan_id"]) for record in view.records if record["kind"] == kind]


def _incidents(view: RunView) -> list[Any]:
    """Without what is another one's in a run that was restarted: attempts and names with them."""
    found: list[Any] = []
    for incident in IncidentBook(view.records).incidents:
        plans = [
            [
                record.plan.rung,
                record.step,
                record.plan.target_step,
                [_call(call.name, dict(call.arguments)) for call in record.plan.actions],
                record.done,
                record.finished,
            ]
            for record in incident.plans
        ]
        passed = (incident.verification or {}).get("passed")
        outcome = incident.outcome.value if incident.outcome is not None else None
        found.append([incident.id, outcome, incident.closed_step, incident.cause, passed, plans])
    return found


def _call(name: str, arguments: dict[str, Any]) -> list[Any]:
    arguments.pop("snapshot_id", None)
    return [name, sorted(arguments.items())]


def _trained(view: RunView, description: Any) -> dict[int, list[Sample]]:
    """By step, the samples that the attempt trained which counts."""
    begun = [
        (int(record["attempt"]), int(record["step"]))
        for record in view.records
        if record["kind"] == "attempt_started"
    ]
    provenance: dict[int, Mapping[int, list[int]]] = {}
    for attempt, _ in begun:
        with suppress(FileNotFoundError):  # killed before its first step
            provenance[attempt] = view.provenance(attempt)
    found: dict[int, list[Sample]] = {}
    for step, (attempt, positions) in counting(begun, provenance).items():
        order = order_at(description, view.records, attempt, step)
        found[step] = [order.locate(at)[1:] for at in positions]
    return found


def counting(
    begun: Sequence[tuple[int, int]], provenance: Mapping[int, Mapping[int, list[int]]]
) -> dict[int, tuple[int, list[int]]]:
    """Which attempt each step counts of, and what it trained there.

    Args:
        begun: (attempt, step at which it began) of all, in order.
        provenance: stream positions by attempt and step.

    An attempt undoes every step after the one at which it begins, trained again or not.

    >>> counting([(1, 0), (2, 1)], {1: {1: [0], 2: [1], 3: [2]}, 2: {2: [5]}})
    {1: (1, [0]), 2: (2, [5])}
    """
    found: dict[int, tuple[int, list[int]]] = {}
    for attempt, start in begun:
        found = {step: one for step, one in found.items() if step <= start}
        for step, positions in provenance.get(attempt, {}).items():
            found[step] = (attempt, list(positions))
    return found
