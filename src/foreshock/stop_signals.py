"""Signals of the system that ask a run to stop: noted at once, answered between two steps.

"Signal" means here what `kill` sends, not a measured quantity.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from foreshock.core.errors import ConfigError

STOP_SIGNALS: Final = ("SIGTERM", "SIGUSR1")
"""SIGTERM is what SLURM, Kubernetes, systemd and torchrun send before SIGKILL; SIGUSR1 what
`sbatch --signal` is told to send in SLURM's and Lightning's documentation."""
GRACE_SECS: Final = 30.0
"""Between SIGTERM and SIGKILL: the default of SLURM's KillWait, of Kubernetes, of torchrun."""


class StopSignals:
    """Notes that this process was asked to stop; the run asks for it between two steps.

    The handler notes the first signal and does nothing else, so that it may come at any moment,
    once or often. Handlers that were there before are called by `pass_on`, after the run has
    stopped. A signal that is ignored stays so, and one that something other than Python handles
    (`faulthandler.register`) is left to it. In a process that was forked off, and once closed,
    a signal does what it did before.

    Args:
        names: such as `("SIGTERM", "SIGUSR1")`; none for nothing.
        clock: seconds that only rise.

    Raises:
        ConfigError: a name is none of a signal that can be caught.
    """

    def __init__(
        self, names: Sequence[str] = STOP_SIGNALS, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._numbers = [_number(name) for name in names]
        self._clock = clock
        self._before: dict[int, Any] = {}
        self._pid = os.getpid()
        self._closed = False
        self._passed_on = False
        self._since = 0.0
        self.heard = 0
        """The number of the first signal that came; 0 for none."""

    @property
    def heard_secs(self) -> float | None:
        """Seconds since it came; None if none did."""
        return self._clock() - self._since if self.heard else None

    def listen(self) -> None:
        """Begin; in a thread other than the main one nothing can be heard."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._numbers:
            before = signal.getsignal(number)
            if before is signal.SIG_IGN or before is None:
                continue
            if before is signal.SIG_DFL and _is_caught(number):
                continue
            self._before[number] = before
            signal.signal(number, self._note)
            signal.siginterrupt(number, False)  # nobody's system call fails for our note

    def close(self) -> None:
        """Let signals do what they did before; again and again does nothing."""
        self._closed = True
        if threading.current_thread() is not threading.main_thread():
            return  # `_note` passes on what comes
        for number in self._before:
            if signal.getsignal(number) == self._note:
                signal.signal(number, self._earlier(number))

    def pass_on(self, number: int) -> None:
        """Call the handler that was there before, if any, once; it may end the process."""
        before = self._earlier(number)
        if callable(before) and not self._passed_on:
            self._passed_on = True
            before(number, None)

    def _earlier(self, number: int) -> Any:
        """What was there before, whoever of those that listened then has closed since."""
        before = self._before.get(number)
        while isinstance(one := getattr(before, "__self__", None), StopSignals) and one._closed:
            before = one._before.get(number)
        return before

    def _note(self, number: int, frame: Any) -> None:
        if self._closed or os.getpid() != self._pid:
            self._as_before(number, frame)
        elif not self.heard:
            self.heard, self._since = number, self._clock()

    def _as_before(self, number: int, frame: Any) -> None:
        before = self._earlier(number)
        if callable(before):
            before(number, frame)
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def name_of(number: int) -> str:
    """The name of a signal, such as "SIGTERM"."""
    return signal.Signals(number).name


def _number(name: str) -> int:
    known = signal.Signals.__members__
    if name not in known or name in ("SIGKILL", "SIGSTOP"):
        raise ConfigError(
            f"signals has {name!r:.40}; it must be names of signals that can be caught, such as "
            '("SIGTERM", "SIGUSR1"), or () for none'
        )
    return int(known[name])


def _is_caught(number: int) -> bool:
    """Whether a handler is there that Python does not know of; as Linux tells it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    masks = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
