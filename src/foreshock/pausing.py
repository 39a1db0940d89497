"""Waiting for a person, between two steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from foreshock.durable import Disk

RESUME_NOW: Final = "resume.now"
"""The file that lifts a pause: `touch RUN/resume.now`."""

FromFirst = Callable[[str, Callable[[], Any]], Any]


class PauseInterrupted(Exception):  # noqa: N818 - it is no fault
    """The run is to stop while it waits; whoever resumes it waits again."""


def of_itself(_what: str, ask: Callable[[], Any]) -> Any:
    """What a rank that is alone hears from the first one."""
    return ask()


class Pausing:
    """Waits for a file in the run directory, for at most a given time.

    On several ranks the first one looks and the others hear of it.

    Args:
        disk: where the file appears.
        run_dir: the run directory.
        sleep: waits for so many seconds.
        from_first: `(what, ask)`; what `ask` returns on the first rank. Collective.
        asked_to_stop: whether this process is to stop; asked of the first rank.
        poll_secs: how often the file is looked for. A second: our choice, because nobody
            sees it and no disk feels it.
    """

    def __init__(
        self,
        disk: Disk,
        run_dir: Path,
        *,
        sleep: Callable[[float], None],
        from_first: FromFirst = of_itself,
        asked_to_stop: Callable[[], object] = lambda: False,
        poll_secs: float = 1.0,
    ) -> None:
        self._disk = disk
        self._path = run_dir / RESUME_NOW
        self._sleep = sleep
        self._from_first = from_first
        self._asked_to_stop = asked_to_stop
        self._poll_secs = poll_secs

    def clear(self) -> None:
        """Remove the file, if it is there; it answers one pause only."""
        try:
            if self._disk.exists(self._path):
                self._disk.remove(self._path)
        except OSError:
            pass  # then the next pause is lifted at once, which is what the file says

    def wait(self, timeout_secs: Callable[[], float]) -> float | None:
        """Wait until the file is there; return the seconds waited, or None if time ran out.

        Seconds slept are counted, rather than a clock read, so that one that is set back or
        stands still cannot make a pause endless.

        Raises:
            PauseInterrupted: the run is to stop.
        """
        left, waited = self._from_first("the pause's end", timeout_secs), 0.0
        while not (said := self._from_first("the end of the pause", self._look))["there"]:
            if said["stop"]:
                raise PauseInterrupted
            if waited >= left:
                return None
            pause = min(self._poll_secs, left - waited)
            self._sleep(pause)
            waited += pause
        return waited

    def _look(self) -> dict[str, bool]:
        return {"there": self._is_there(), "stop": bool(self._asked_to_stop())}

    def _is_there(self) -> bool:
        try:
            return self._disk.exists(self._path)
        except OSError:
            return False
