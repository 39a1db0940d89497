"""Writes one thing at a time behind the training's back."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple


class Written(NamedTuple):
    """What came of a write.

    Attributes:
        name: what was written.
        result: what the write returned; None where it failed.
        error: why it failed, if it did: of the disk, of the state, or of memory.
    """

    name: str
    result: int | None
    error: Exception | None


class Writer:
    """Does one write at a time, in a thread of its own or at once.

    What it is given must not change until the write is collected.

    Args:
        asynchronous: whether in a thread; otherwise `start` returns when all is done.
    """

    def __init__(self, *, asynchronous: bool) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._asynchronous = asynchronous
        self._name = ""
        self._write: Future[int] | None = None

    @property
    def writing(self) -> str:
        """What is being written, or is written and not collected; "" for nothing."""
        return self._name if self._write is not None else ""

    @property
    def busy(self) -> bool:
        """Whether a write is still going on."""
        return self._write is not None and not self._write.done()

    def start(self, name: str, write: Callable[[], int]) -> None:
        """Begin a write. RuntimeError if the one before has not been collected."""
        if self._write is not None:
            raise RuntimeError(f"{self._name} has not been collected")
        self._name = name
        if self._asynchronous:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="foreshock-snapshots")
            self._write = self._pool.submit(write)
            return
        done: Future[int] = Future()
        try:
            done.set_result(write())
        except Exception as error:
            done.set_exception(error)
        self._write = done

    def collect(self, *, wait: bool = False) -> Written | None:
        """What came of the write, once; None while it goes on, unless it is waited for.

        Raises:
            BaseException: what is no Exception stopped the write; the process is to end.
        """
        if self._write is None or not (wait or self._write.done()):
            return None
        write, name = self._write, self._name
        error = write.exception()
        self._write = None
        if error is not None and not isinstance(error, Exception):
            raise error
        return Written(name, write.result() if error is None else None, error)

    def then(self, work: Callable[[], None]) -> None:
        """Do something small after what is being written, in the same order for all."""
        if self._pool is not None:
            self._pool.submit(work)
        else:
            work()

    def close(self) -> None:
        """Wait for everything that was begun."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
