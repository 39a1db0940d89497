"""The report for a terminal, readable at 80 columns: the verdict first."""

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from foreshock.core.cause import Evidence
from foreshock.report import words
from foreshock.report.incidents import IncidentSummary
from foreshock.report.summary import RunSummary

_STYLES = {
    "recovered": "green",
    "finished": "green",
    "halted": "red",
    "open": "yellow",
    "stopped": "yellow",
}
_MAX_FACTS = 6
_MAX_OTHERS = 4
_MAX_ADVICE = 8
_MAX_TROUBLES = 4


def print_summary(run: RunSummary, console: Console) -> None:
    """Print a run's summary. Every string of the run is shown as it is, never as markup."""
    about = [run.program, words.moment(run.started), run.run_dir]
    console.print(Text(run.verdict, style=f"bold {_STYLES.get(run.state, '')}".strip()))
    console.print(Text(" · ".join(filter(None, about)), style="dim"))
    console.print()
    console.print(Text(_figures(run)))
    if run.waits_since is not None:
        waits = (
            f"It waits for a person since step {run.waits_since:,}: touch {run.run_dir}/resume.now"
        )
        console.print(Text(waits, style="bold yellow"))
    for note in run.notes:
        console.print(Text(f"! {note}", style="yellow"))
    if run.handover and run.state == "halted":
        console.print(Padding(Text(run.handover), (1, 0, 0, 2)))
    for incident in run.incidents:
        console.print()
        _incident(incident, console)
    rest = _rest(run)
    if rest:
        console.print()
        for line in rest:
            console.print(Text(line))


def _figures(run: RunSummary) -> str:
    parts = [
        words.count(run.step, "step"),
        words.count(len(run.attempts), "attempt"),
        f"{words.count(run.num_steps_undone, 'step')} undone",
        words.count(len(run.incidents), "incident"),
        f"{words.count(run.num_skips, 'update')} skipped",
        f"{words.count(run.num_quarantined, 'sample')} set aside",
    ]
    return ", ".join(parts) + "."


def _incident(incident: IncidentSummary, console: Console) -> None:
    head = Text()
    head.append(f"Incident {incident.number}: {words.plain(incident.cause)} ", style="bold")
    head.append(f"{words.percent(incident.probability)}  ", style="dim")
    head.append(incident.outcome, style=_STYLES.get(incident.outcome, ""))
    console.print(head)
    body = Table.grid(padding=(0, 2))
    body.add_column(style="dim", no_wrap=True)
    body.add_column()
    body.add_row("first sign", Text(incident.lead))
    steps = [f"{event.title.lower()} at {event.step:,}" for event in incident.events]
    body.add_row("steps", Text("; ".join(steps)))
    for plan in incident.plans:
        lines = [f"{plan.why}.", *(f"→ {result}" for result in plan.results)]
        if not plan.finished:
            lines.append("→ not carried out to its end yet")
        body.add_row(f"plan {plan.id}", Text("\n".join(lines)))
    body.add_row("why", _facts(incident.diagnosis.top.evidence))
    for one in incident.alternatives[:_MAX_OTHERS]:
        other = Text(f"{words.plain(one.cause)} {words.percent(one.probability)}")
        if one.evidence:
            other.append("\n")
            other.append(_facts(one.evidence))
        body.add_row("or", other)
    for branch in incident.diagnosis.path:
        body.add_row("tree", Text(f"{branch.question} {branch.answer}"))
    _checks(incident, body)
    _aftermath(incident, body)
    body.add_row("settle it", Text(incident.settled_by))
    counsel = incident.counsel
    for head, lines in (
        ("replay", counsel.costs),
        ("helps", counsel.remedies),
        ("does not", counsel.no_help),
    ):
        if lines:
            body.add_row(head, Text("\n".join(lines)))
    console.print(Padding(body, (0, 0, 0, 2)))


def _checks(incident: IncidentSummary, body: Table) -> None:
    """Each verification, with a verdict for each capability."""
    checks = [incident.doubt] if incident.doubt is not None else []
    for check in [*checks, *incident.verifications]:
        line = Text(f"step {check.step:,}: ")
        style = "green" if check.passed else "red"
        line.append("passed" if check.passed else "failed", style=style)
        if check.again:
            line.append(", looked at once more")
        if check is incident.doubt:
            line.append(", though the alarms had healed")
        for probe in check.probes:
            line.append(
                f"\n{probe.probe} {words.figure(probe.before)} → {words.figure(probe.after)} "
                f"(tolerance {words.figure(probe.tolerance)}) "
            )
            told = "within noise" if probe.passed else "worse"
            line.append(told, style="green" if probe.passed else "red")
        if check.note:
            line.append(f"\n{check.note}")
        body.add_row("whole?", line)


def _aftermath(incident: IncidentSummary, body: Table) -> None:
    for pause in incident.after.pauses:
        body.add_row("paused", Text(f"at step {pause.step:,}: {pause.ending}"))
    for one in incident.after.strengthen:
        fell = ", ".join(words.plain(name) for name in one.capabilities)
        body.add_row("strengthen", Text(f"{one.data}, which teaches {fell}"))
    if incident.after.needed is not None:
        body.add_row("its data", Text(incident.after.needed.words))


def _facts(evidence: tuple[Evidence, ...]) -> Text:
    lines = [f"{fact.weight:+.1f}  {fact.statement}" for fact in evidence[:_MAX_FACTS]]
    if len(evidence) > _MAX_FACTS:
        lines.append(f"and {len(evidence) - _MAX_FACTS} more")
    return Text("\n".join(lines) or "no evidence for or against")


def _rest(run: RunSummary) -> list[str]:
    lines = _advice(run)
    if run.watched is not None:
        lines.append(
            f"Being watched when the record ends: {words.count(run.watched.num_alarms, 'alarm')} "
            f"from step {run.watched.first_step:,} on ({', '.join(run.watched.series)})."
        )
    if run.healed:
        at = _steps([episode.first_step for episode in run.healed])
        number = words.count(len(run.healed), "brief episode")
        lines.append(f"{number} of alarms led to no incident (step {at}).")
    if run.skips:
        told = ", ".join(f"{number:,} × {reason}" for reason, number in run.skips.items())
        lines.append(f"Skipped updates: {told}.")
    if run.rejected:
        told = ", ".join(f"{number:,} × {rule}" for rule, number in run.rejected.items())
        lines.append(f"Samples refused by data rules: {told}.")
    if run.snapshots:
        number = words.count(len(run.snapshots), "snapshot")
        lines.append(f"{number} on disk, the last of step {run.snapshots[-1].step:,}.")
    if run.snapshots_skipped:
        number = words.count(len(run.snapshots_skipped), "snapshot")
        lines.append(
            f"{number} stayed in memory, because the one before was still being written (step "
            f"{_steps(run.snapshots_skipped)})."
        )
    lines += [f"! {trouble}" for trouble in _some(run.snapshot_troubles)]
    lines += [f"! {failed}" for failed in _some(run.notices_failed)]
    return lines


def _advice(run: RunSummary) -> list[str]:
    lines = [
        f"Advice at step {one.step:,}, not carried out: {one.rung}, for {words.plain(one.cause)} "
        f"{words.percent(one.probability)}: {one.why}."
        for one in run.advice[:_MAX_ADVICE]
    ]
    if len(run.advice) > _MAX_ADVICE:
        lines.append(f"and {len(run.advice) - _MAX_ADVICE} more advices.")
    return lines


def _steps(steps: Sequence[int]) -> str:
    shown = ", ".join(f"{one:,}" for one in steps[:8])
    return shown + (f" and {len(steps) - 8} more" if len(steps) > 8 else "")


def _some(told: Sequence[str]) -> list[str]:
    more = [f"and {len(told) - _MAX_TROUBLES} more"] if len(told) > _MAX_TROUBLES else []
    return [*told[:_MAX_TROUBLES], *more]
