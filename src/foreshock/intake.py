"""What was measured is taken in, a step at a time: recorded, judged, told."""

from collections.abc import Callable, Mapping
from typing import Any

from foreshock.control import Control
from foreshock.journal import Journal
from foreshock.observation import Observation
from foreshock.supervision import Supervisor

Listener = Callable[[str, Mapping[str, Any]], None]


class Intake:
    """Hands on the steps that are due to be read.

    Args:
        observation: where they come from.
        journal: where their readings are kept.
        control: what held at a step.
        supervisor: what judges them.
        tell: hears of each, and of a plan that was made.
    """

    def __init__(
        self,
        observation: Observation,
        journal: Journal,
        control: Control,
        supervisor: Supervisor,
        tell: Listener,
    ) -> None:
        self._observation = observation
        self._journal = journal
        self._control = control
        self._supervisor = supervisor
        self._tell = tell
        self.stop_signal = 0
        """What a rank was asked to stop by, as heard by all at the same step; 0 for nothing."""

    def absorb(self, attempt: int, *, drain: bool) -> None:
        """Take in what is due, or with `drain` all there is, up to the first plan.

        Later steps are judged once the plan has been carried out, or not at all.
        """
        monitor = self._supervisor.monitor
        for row in self._observation.read(drain=drain):
            self._journal.append_reading(row.step, int(row.committed), row.values)
            limit = self._control.gate_limit(row.step)
            known = len(monitor.episode)
            self.stop_signal = max(self.stop_signal, row.stop_signal)
            plan = self._supervisor.see(attempt, row, limit)
            alarms = monitor.episode[known:]
            told = {"attempt": attempt, "row": row, "series": self._observation.series}
            self._tell("step", {**told, "alarms": alarms, "raised": monitor.raised})
            if plan is not None:
                incident = self._supervisor.book.incidents[-1]
                self._tell("plan", {"plan": plan, "incident": incident})
                break


def nobody(_kind: str, _content: Mapping[str, Any]) -> None:
    """A listener that does not listen."""
