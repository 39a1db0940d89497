"""Results that are kept trial by trial, so that a benchmark killed at any moment goes on."""

import json
import os
from datetime import UTC, datetime
from fcntl import LOCK_EX, flock
from pathlib import Path
from threading import Lock
from typing import Any


class Results:
    """A file of JSON lines, `{"key", "date", "value"}` each; the last line of a key counts.

    A line is appended in one write, under a lock between processes, and synced before `add`
    returns. A line that a kill cut short is passed over, and closed before the next is added.
    Non-finite numbers are refused: say `None`.

    Args:
        path: the file; made, with its directory, at the first `add`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self._kept: dict[str, Any] = {}
        self._dates: dict[str, str] = {}
        if path.exists():
            self._read(path.read_text(encoding="utf-8", errors="replace"))

    def __len__(self) -> int:
        return len(self._kept)

    def done(self, key: str) -> bool:
        """Whether a value is kept under this key."""
        return key in self._kept

    def get(self, key: str) -> Any:
        """The value of a key.

        Raises:
            KeyError: nothing is kept under it.
        """
        return self._kept[key]

    def add(self, key: str, value: Any) -> None:
        """Keep a JSON value under a key, durably.

        Raises:
            ValueError: it holds a number that is not finite.
            TypeError: it is no JSON value.
        """
        date = datetime.now(UTC).isoformat(timespec="seconds")
        row = {"key": key, "date": date, "value": value}
        line = json.dumps(row, allow_nan=False, sort_keys=True) + "\n"
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append(line.encode())
            self._kept[key], self._dates[key] = json.loads(line)["value"], date

    def values(self, prefix: str = "") -> dict[str, Any]:
        """All values whose keys begin with `prefix`, by key, in order."""
        return {key: self._kept[key] for key in sorted(self._kept) if key.startswith(prefix)}

    def dates(self, prefix: str = "") -> tuple[str, str] | None:
        """When the first and the last of these values were added; None without any."""
        found = sorted(date for key, date in self._dates.items() if key.startswith(prefix))
        return (found[0], found[-1]) if found else None

    def _append(self, line: bytes) -> None:
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            flock(handle, LOCK_EX)
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            data = b"\n" + line if torn else line
            if os.write(handle, data) != len(data):
                raise OSError(f"{self.path} took only a part of a result; is the disk full?")
            os.fsync(handle)
        finally:
            os.close(handle)

    def _read(self, text: str) -> None:
        for line in text.split("\n"):
            try:
                row = json.loads(line)
                key, date, value = row["key"], row["date"], row["value"]
            except (ValueError, TypeError, KeyError):
                continue
            self._kept[key], self._dates[key] = value, date
