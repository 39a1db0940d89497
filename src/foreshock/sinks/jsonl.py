"""Mirror a run as lines of JSON, for `tail -f`, `jq` and everything that reads lines."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from foreshock.core.errors import ConfigError
from foreshock.core.mirrored import Mirrored, MirroredNotice, MirroredRun
from foreshock.core.reading import json_number
from foreshock.core.sink import Mirror, MirrorSink


@dataclass(frozen=True, kw_only=True)
class Jsonl(MirrorSink):
    """Append one JSON object a line to a file.

        {"kind":"step","run":"a","attempt":1,"step":10,"time":…,"committed":true,
         "readings":{"loss/global":2.5},"thresholds":{"loss/global":4.1},"alarms":[]}
        {"kind":"notice","run":"a","attempt":1,"step":12,"time":…,"notice":"plan",
         "title":"…","body":"…"}

    NaN and ±Inf are the strings "NaN", "Infinity" and "-Infinity", as in the journal, of which
    this is a copy: nothing is synced, and a crash may cut the last line short. After a rollback
    steps go back and `attempt` has risen.

    Args:
        path: the file; new ones begin where the last process ended. Its folder must exist.
        max_bytes: size from which on it is moved to `path` + ".1", in place of what was there,
            and begun anew; 0 for no limit. 1 GiB by default: our choice, so that no disk fills.

    Raises:
        ConfigError: there is no path, or `max_bytes` is below 0.
    """

    name: ClassVar[str] = "jsonl"
    path: str = ""
    max_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise ConfigError("sinks.jsonl has no path; name the file to write to")
        if self.max_bytes < 0:
            raise ConfigError(f"sinks.jsonl.max_bytes is {self.max_bytes}; it must be 0 or more")

    def mirrors(self, run: MirroredRun) -> Sequence[Mirror]:
        path = Path(self.path)
        if not path.parent.is_dir():
            raise ConfigError(f"sinks.jsonl.path: there is no folder {path.parent}")
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise ConfigError(f"sinks.jsonl.path: {path} is no plain file")
        return [_Lines(path, self.max_bytes, run.name)]


class _Lines:
    """The file; see `Mirror`."""

    label = "jsonl"

    def __init__(self, path: Path, max_bytes: int, run: str) -> None:
        self._path, self._max_bytes, self._run = path, max_bytes, run
        self._fd = -1

    def adopt(self) -> None:
        pass

    def open(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        self._fd = os.open(self._path, flags, 0o666)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":  # a crash cut the last line short
            self._write(b"\n")

    def take(self, said: Sequence[Mirrored]) -> None:
        lines = [json.dumps(self._object(one), separators=(",", ":")) + "\n" for one in said]
        data = "".join(lines).encode()
        full = self._max_bytes and os.fstat(self._fd).st_size + len(data) > self._max_bytes
        if full and os.fstat(self._fd).st_size:
            self._path.replace(f"{self._path}.1")
            self.close()
            self.open()
        self._write(data)

    def close(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def _write(self, data: bytes) -> None:
        size = os.fstat(self._fd).st_size
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:  # it is tried again: no line may stand there in part
            os.ftruncate(self._fd, size)
            raise

    def _object(self, said: Mirrored) -> dict[str, Any]:
        is_notice = isinstance(said, MirroredNotice)
        when = {
            "kind": "notice" if is_notice else "step",
            "run": self._run,
            "attempt": said.attempt,
            "step": said.step,
            "time": said.time_secs,
        }
        if isinstance(said, MirroredNotice):
            notice = said.notice
            words = {"notice": notice.kind.value, "title": notice.title, "body": notice.body}
            return {**when, **words}
        return {
            **when,
            "committed": said.committed,
            "readings": {name: json_number(one) for name, one in said.readings().items()},
            "thresholds": said.limits(),
            "alarms": [alarm.to_json() for alarm in said.alarms],
        }
