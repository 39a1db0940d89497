"""Keeps what a library logs in this thread to itself: it may hold parts of an address."""

import logging
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager


@contextmanager
def hushed(names: Iterable[str]) -> Generator[None, None, None]:
    """Drop what this thread logs through these loggers; other threads are heard.

    Args:
        names: of the loggers themselves, since a filter does not hold for those below.
    """
    mine = threading.get_ident()
    loggers = [logging.getLogger(name) for name in names]

    def keep(record: logging.LogRecord) -> bool:
        return record.thread != mine

    for logger in loggers:
        logger.addFilter(keep)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(keep)
