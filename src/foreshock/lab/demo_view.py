"""The demo in a terminal: live while it runs, and its story at the end."""

import math
import textwrap
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
_NUM_EVENTS = 9


class DemoView:
    """Shows the runs as they train: loss, gradient norm, alarms and decisions.

    Args:
        console: where to draw; on one that is no terminal, decisions are printed as lines.
        runs: (name, steps) of the runs to come.
    """

    def __init__(self, console: Console, runs: list[tuple[str, int]]) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<15}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:>4.0f}/{task.total:.0f} steps"),
            TextColumn("loss {task.fields[loss]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=steps, loss="  -  ", start=False)
            for name, steps in runs
        }
        self._events: deque[Text] = deque(maxlen=_NUM_EVENTS)
        self._losses: deque[float] = deque(maxlen=_WIDTH)
        self._norms: deque[float] = deque(maxlen=_WIDTH)
        self._step = 0
        self._attempt = 1
        self._live = Live(console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> "DemoView":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def progress(self, name: str, executed: int, loss: float) -> None:
        """One more step of a run."""
        if name in self._tasks:
            task = self._tasks[name]
            if not self._progress.tasks[task].started:
                self._progress.start_task(task)
            self._progress.update(task, completed=executed, loss=f"{loss:5.2f}")
        self._draw()

    def listen(self, kind: str, content: Mapping[str, Any]) -> None:
        """What the Guard tells while it works."""
        if kind == "step":
            series = content["series"]
            row = content["row"]
            self._step = row.step
            self._losses.append(float(row.values[series.index("loss/global")]))
            self._norms.append(float(row.values[series.index("grad_norm/global")]))
            for alarm in content["alarms"]:
                text = f"{alarm.series} {alarm.value:.3g}, limit {alarm.threshold:.3g}"
                self._say(row.step, "alarm", text, "yellow")
            return
        for step, word, text, style in _events(kind, content, self._step):
            self._say(step, word, text, style)

    def _say(self, step: int, word: str, text: str, style: str) -> None:
        indent = " " * 17
        body = textwrap.fill(text, 78, initial_indent=indent, subsequent_indent=indent).lstrip()
        line = Text.assemble((f"{step:>5} ", "dim"), (f"{word:<11}", f"bold {style}"), body)
        self._events.append(line)
        if not self._console.is_terminal and word != "alarm":
            self._console.print(line)

    def _draw(self) -> None:
        if not self._live.is_started:
            return
        curves = Table.grid(padding=(0, 1))
        curves.add_row("loss", _spark(self._losses), _last(self._losses))
        curves.add_row("grad norm", _spark(self._norms), _last(self._norms))
        events = Group(*self._events) if self._events else Text("nothing out of range", "dim")
        self._live.update(
            Group(
                self._progress,
                Panel(curves, title=f"guarded run, step {self._step}", title_align="left"),
                Panel(events, title="alarms and decisions", title_align="left"),
            )
        )


def _events(kind: str, content: Mapping[str, Any], step: int) -> list[tuple[int, str, str, str]]:
    match kind:
        case "plan":
            incident = content["incident"]
            top = incident.diagnosis["candidates"][0]
            cause = f"{top['cause']} ({top['probability']:.0%}), onset at step "
            cause += str(incident.diagnosis["onset_step"])
            return [
                (step, "diagnosis", cause, "magenta"),
                (step, "decision", content["plan"].plan.why, "red"),
            ]
        case "action":
            return [(step, "done", content["result"], "cyan")]
        case "episode_probed":
            verdict = "the model was hurt" if content["harmed"] else "no harm found"
            return [(step, "probe", f"held-out loss: {verdict}", "yellow")]
        case "verification":
            word = "whole again" if content["passed"] else "not whole yet"
            return [(step, "verified", word, "green" if content["passed"] else "red")]
        case _:
            return []


def _spark(values: "deque[float]") -> Text:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return Text("")
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    bars = [
        _BARS[int((value - low) / span * 7.999)] if math.isfinite(value) else "!"
        for value in values
    ]
    return Text("".join(bars), "blue")


def _last(values: "deque[float]") -> str:
    return f"{values[-1]:8.3f}" if values else ""


def story(result: Mapping[str, Any], *, report: str | None) -> Group:
    """The end of the demo in words, for at most 80 columns."""
    parts: list[Any] = []
    faults = result["faults"]
    if faults is not None:
        shard, moments = faults["crawl_shard"], faults["optimizer_moments"]
        parts += [
            Text("What was done to the run", "bold"),
            Text(
                f"  step {shard['first_step']:>4}  a crawl shard of {shard['batches']} batches: "
                f"template repetition and\n             mis-decoded bytes "
                f"({shard['intensity']:.0%} of its windows)\n"
                f"  step {moments['step']:>4}  second moments of the optimizer damaged "
                f"({moments['mode']})"
            ),
            Text(""),
        ]
    if "guarded" not in result["curves"]:
        text = f"Without Foreshock: excess held-out loss {result['excess_loss_unguarded']} nats x"
        return Group(*parts, Text(f"{text} steps\nagainst the untouched twin"))
    parts.append(Text("What Foreshock made of it", "bold"))
    if refused := result["samples_refused_by_rules"]:
        parts.append(Text(f"  {refused} samples were refused at the door by the data rules"))
    if not result["incidents"]:
        parts.append(Text("  no incident"))
    for number, one in enumerate(result["incidents"], 1):
        parts.append(_incident(number, one))
    parts.append(Text(""))
    guarded, unguarded = result["excess_loss_guarded"], result["excess_loss_unguarded"]
    if guarded is not None and unguarded is not None:
        text = (
            f"Excess held-out loss against the untouched twin (nats x steps):\n"
            f"  guarded {guarded:.2f}, unguarded {unguarded:.2f}"
        )
        if guarded > 0:
            text += f": {unguarded / guarded:.1f} times less"
        parts.append(Text(text))
    verdict = "PASSED: every incident caught, undone and verified" if result["passed"] else "FAILED"
    if faults is None and result["passed"]:
        verdict = "PASSED: a healthy run raised no incident"
    parts.append(Text(verdict, "bold green" if result["passed"] else "bold red"))
    if report is not None:
        parts.append(Text(f"Report: {report}", overflow="fold"))
    return Group(*parts)


def _incident(number: int, one: Mapping[str, Any]) -> Text:
    moved = one["loss_moved_step"]
    if moved is None:
        lead = "the training loss never left its range"
    else:
        ahead = moved - one["onset_step"]
        lead = "in the same step as the loss" if ahead == 0 else f"{ahead} step(s) before the loss"
    verified = "verified whole" if one["verified"] else "NOT verified"
    lines = [
        f"  {number}. {one['cause']}: {one['first_mover']} moved first, at step "
        f"{one['onset_step']},",
        f"     {lead}; alarm at step {one['alarm_step']}",
        f"     {one['num_rollbacks']} rollback(s) to step {one['rolled_back_to']}, "
        f"{one['quarantined_samples']} samples set aside",
    ]
    if one["steps_to_recover"] is not None:
        lines.append(f"     recovered {one['steps_to_recover']} executed steps after the onset")
    difference = one["difference_to_twin"]
    if difference is not None:
        lines.append(f"     held-out loss {difference:+.4f} against the untouched twin")
    lines.append(f"     {verified}")
    return Text("\n".join(lines))
