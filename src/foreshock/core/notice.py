"""Words a notice so that a person can act on it at 3 a.m."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foreshock.core.action import Plan
from foreshock.core.cause import Diagnosis
from foreshock.core.incident import Incident
from foreshock.core.sink import Notice, NoticeKind

MAX_CHARS: Final = 3500
"""Of a body. Our choice: below the 4,096 that chat services cut at."""

_NOTHING = "You need not do anything now."


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which run this is, for a person who watches several."""

    run: str
    run_dir: str

    @property
    def look(self) -> str:
        """Where to see more."""
        return f"Look: foreshock report {self.run_dir}"

    @property
    def resume(self) -> str:
        """How to go on."""
        return (
            f"To go on: read {self.run_dir}/handover.md, then start the same program with --resume"
        )

    def notice(self, kind: NoticeKind, title: str, lines: Sequence[str]) -> Notice:
        """A notice of this run, cut where it would be too long for any service."""
        body = "\n".join(line for line in lines if line)
        if len(body) > MAX_CHARS:
            end = "\n… (more in the report)\n" + self.look[:400]
            body = body[: MAX_CHARS - len(end)] + end
        return Notice(kind=kind, title=f"[foreshock] {self.run}: {title}"[:200], body=body)


def planned(place: Place, incident: Incident, plan: Plan, step: int) -> Notice:
    """An incident was opened or taken further; or the run is halted."""
    names = [call.name for call in plan.actions]
    diagnosis = Diagnosis.from_json(incident.diagnosis)
    cause = f"{diagnosis.top.cause} ({diagnosis.top.probability:.0%})"
    if "halt" in names:
        note = next(call.arguments["note"] for call in plan.actions if call.name == "halt")
        return halted(place, step, str(note))
    if len(incident.plans) == 1:
        return place.notice(
            NoticeKind.INCIDENT_OPENED,
            f"incident {incident.id} at step {step}: {cause}",
            [
                *_findings(diagnosis),
                f"Being done ({plan.rung}): {plan.why}.",
                f"{_NOTHING} You hear when it has recovered, and if it has not.",
                place.look,
            ],
        )
    return place.notice(
        NoticeKind.PLAN,
        f"incident {incident.id}, plan {len(incident.plans)} at step {step}: {plan.rung}",
        [
            "What was done before did not cure it.",
            *_findings(diagnosis),
            f"Being done ({plan.rung}): {plan.why}.",
            f"{_NOTHING} When nothing else is left, the run halts and says so.",
            place.look,
        ],
    )


def paused(place: Place, incident: Incident, plan: Plan, step: int, timeout_secs: float) -> Notice:
    """The run begins to wait for a person, or a resumed one waits on."""
    diagnosis = Diagnosis.from_json(incident.diagnosis)
    return place.notice(
        NoticeKind.PAUSED,
        f"waits for you at step {step}: {diagnosis.top.cause} ({diagnosis.top.probability:.0%})",
        [
            plan.why + ".",
            *_findings(diagnosis),
            f"To let it go on as it is: touch {place.run_dir}/resume.now",
            f"Without that it halts {_length(timeout_secs)} after the pause began.",
            "To stop it now, end the process: it waits on when it is started with --resume.",
            place.look,
        ],
    )


def advised(place: Place, record: Mapping[str, Any]) -> Notice:
    """Advice was given, and nothing of it done."""
    diagnosis, plan = Diagnosis.from_json(record["diagnosis"]), Plan.from_json(record["plan"])
    cause = f"{diagnosis.top.cause} ({diagnosis.top.probability:.0%})"
    return place.notice(
        NoticeKind.ADVICE,
        f"advice at step {record['step']}: {plan.rung}, {cause}",
        [
            *_findings(diagnosis),
            f"What Foreshock would do ({plan.rung}): {plan.why}.",
            "Nothing of it is done: the run was started with advise. Whether it is, is up to you.",
            place.look,
        ],
    )


def halted(place: Place, step: int, note: str) -> Notice:
    """The run was stopped and handed over."""
    return place.notice(
        NoticeKind.HALTED,
        f"HALTED at step {step}; someone must look",
        [note or "The run was handed over.", place.resume + ".", place.look],
    )


def recovered(
    place: Place, incident_id: int, step: int, verification: Mapping[str, Any] | None
) -> Notice:
    """A recovery was verified."""
    probes = list(verification["probes"]) if verification is not None else []
    whole = f"The model is whole: {len(probes)} probe(s) against before, none worse beyond noise."
    unproved = str(verification["note"]) if verification is not None else ""
    return place.notice(
        NoticeKind.RECOVERED,
        f"incident {incident_id} recovered at step {step}",
        [
            whole if probes else f"The run is quiet again; {unproved}.",
            _NOTHING,
            f"What was set aside can be narrowed down: foreshock minimize {place.run_dir} "
            "--program PATH.py:function",
            place.look,
        ],
    )


def verification_failed(
    place: Place, incident_id: int, step: int, verification: Mapping[str, Any]
) -> Notice:
    """The loss has recovered and a capability has fallen; the recovery goes further."""
    worse = [str(one.get("probe")) for one in verification["probes"] if not one.get("passed")]
    return place.notice(
        NoticeKind.VERIFICATION_FAILED,
        f"incident {incident_id}: not whole at step {step}",
        [
            f"The loss looks recovered, but these fell: {', '.join(worse) or 'see the report'}.",
            "The recovery goes further; you hear what is done next.",
            place.look,
        ],
    )


def to_strengthen(place: Place, step: int, advice: Mapping[str, Any]) -> Notice:
    """A capability has fallen, and going back does not help."""
    return place.notice(
        NoticeKind.VERIFICATION_FAILED,
        f"incident {advice['incident']}: not whole at step {step}, and nothing older helps",
        [
            f"These fell: {', '.join(map(str, advice['capabilities']))}.",
            "No healthy state from before is left that a recovery has not failed from.",
            f"What would teach them again: {advice['data']}.",
            place.look,
        ],
    )


def _length(secs: float) -> str:
    """A length of time, in words."""
    return f"{secs:.0f} seconds" if secs < 120 else f"{secs / 60:.0f} minutes"


def _findings(diagnosis: Diagnosis) -> list[str]:
    """What moved, and what it is thought to be."""
    moved = f"{diagnosis.first_mover} left its range at step {diagnosis.onset_step}"
    if diagnosis.loss_moved_step is not None:
        moved += f", the loss at step {diagnosis.loss_moved_step}"
    shares = [f"{one.cause} ({one.probability:.0%})" for one in diagnosis.candidates[:3]]
    lines = [f"{moved}.", f"Likeliest cause: {', then '.join(shares)}."]
    strongest = sorted(diagnosis.top.evidence, key=lambda fact: -abs(fact.weight))[:2]
    return lines + [f"- {fact.statement}" for fact in strongest]
