"""Every error a user can meet, in one family.

Each message names what was given, what is allowed and what to do. The command
line prints the message alone, without a traceback, and exits with `exit_code`.
"""


class ForeshockError(Exception):
    """The root: catching it catches everything Foreshock raises on purpose."""

    exit_code = 2


class ConfigError(ForeshockError):
    """A setting has a value that is not allowed, or two settings contradict each other."""


class ProgramError(ForeshockError):
    """The user's program could not be loaded, raised, or returned the wrong thing."""


class CatalogError(ForeshockError):
    """A component could not be found, or does not keep its family's contract."""


class CapabilityError(ForeshockError):
    """A policy asks for something that this loop cannot do; raised when the Guard is built."""


class RunDirError(ForeshockError):
    """The run directory cannot be used: it belongs to another program, version or process."""


class JournalError(ForeshockError):
    """The journal holds a record that was damaged after it had been written."""


class SnapshotError(ForeshockError):
    """A snapshot cannot be written, or does not pass its own checks when read."""


class StreamError(ForeshockError):
    """The data stream is malformed, empty, or was asked for a position it does not have."""


class LoopError(ForeshockError):
    """The training loop and the Guard are out of step (two `step` calls for one batch, say)."""


class MissingExtra(ForeshockError):  # noqa: N818 - it names what is missing
    """A part was asked for whose packages are not installed."""


class Halted(ForeshockError):  # noqa: N818 - it reports a decision, not a fault
    """The policy stopped the run and handed it over to a person."""

    exit_code = 3


class Stopped(ForeshockError, SystemExit):  # noqa: N818 - it reports what was asked for
    """The system asked the run to stop; it goes on from disk when it is started again.

    A script that lets it pass ends with exit code 75, and without a traceback.
    """

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: not done, try again

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = self.exit_code


class LogError(ForeshockError):
    """A log cannot be read: it is missing, empty, of no known format, or damaged at its root."""
