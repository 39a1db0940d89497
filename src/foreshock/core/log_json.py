"""JSON as logs hold it: a line an object, arrays of objects, objects of lists; cut or huge."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, cast

from foreshock.core.errors import LogError
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_columns import guess_roles
from foreshock.core.log_names import step_place
from foreshock.core.log_table import BLOCK_ROWS, NUM_SAMPLED, Layout, RowTaker
from foreshock.core.reader import Source

MAX_TEXT_BYTES = 256 << 20
MAX_OBJECT_BYTES = 64 << 20
"""One object of lists: Python needs up to twenty times its text."""

_MAX_DEPTH = 5
_MAX_KEYS = 1000
_MAX_FAILURES = 10
_MAX_LAYOUTS = 2000
_WRAPPERS = frozenset(
    ["data", "metrics", "scalars", "values", "logs", "log", "stats", "payload", "results", "record"]
)
"""Names that objects have because something must hold the values."""

_BETWEEN = re.compile(r"[\s,\[\]]*")
_SEVERAL = re.compile(r"\}[ \t\r,]*\{")
"""Between two objects on a line."""
_END = "\n"
_BROKEN = (ValueError, RecursionError)

Object = dict[str, Any]
_scan = cast("Callable[[str, int], tuple[Object, int]]", json.JSONDecoder().raw_decode)


def objects_in(line: str) -> list[Object]:
    """The whole objects on a line, behind a prefix or not.

    >>> objects_in('{"loss": NaN}'), objects_in('INFO {"a": 5} {"a": 6} {"a"')
    ([{'loss': nan}], [{'a': 5}, {'a': 6}])
    """
    found: list[Object] = []
    at = 0 if line[:1] == "{" else line.find("{")
    while at >= 0:
        try:
            one, end = _scan(line, at)
        except _BROKEN:
            break
        found.append(one)
        at = line.find("{", end) if end < len(line) else -1
    return found


def objects_in_lines(source: Source, log: LogBuilder) -> Iterator[tuple[int, Object]]:
    """Each object on each line, with the line's number."""
    num_broken, first_broken = 0, 0
    for first, text in source.texts():
        if whole := _objects_of(text):
            log.num_lines = first + len(whole) - 1
            yield from enumerate(whole, first)
            continue
        for number, line in enumerate(text[:-1].split("\n"), first):
            log.num_lines = number
            if line[:1] == "{":
                try:
                    one, end = _scan(line, 0)
                except _BROKEN:
                    num_broken += 1
                    first_broken = first_broken or number
                    continue
                yield number, one
                if end == len(line):
                    continue
                line = line[end:]  # noqa: PLW2901
            elif "{" not in line:
                continue
            found = objects_in(line)
            for one in found:
                yield number, one
            if not found and "{" in line:
                num_broken += 1
                first_broken = first_broken or number
    if num_broken:
        log.note(
            f"{num_broken} lines are no whole JSON and were skipped; line {first_broken} first"
        )


def _objects_of(text: str) -> list[Object]:
    """The objects of lines that are one each; none if that is not plain."""
    num_lines = text.count("\n")
    if text[0] != "{" or text.count("\n{") != num_lines - 1 or text.count("}\n") != num_lines:
        return []
    if text.count("}") != num_lines and _SEVERAL.search(text):
        return []
    try:
        found: list[object] = json.loads(f"[{text[:-1].replace(_END, _END + ',')}]")
    except _BROKEN:
        return []
    is_plain = len(found) == num_lines and set(map(type, found)) == {dict}
    return cast("list[Object]", found) if is_plain else []


def text_of(source: Source, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """A document as text.

    Raises:
        LogError: it is longer than `max_bytes`.
    """
    parts: list[bytes] = []
    size = 0
    for block in source.blocks():
        size += len(block)
        if size > max_bytes:
            raise LogError(f"{source.name} is a JSON document of more than {max_bytes >> 20} MiB")
        parts.append(block)
    data = b"".join(parts)
    return data.decode(json.detect_encoding(data), "replace")


def objects_in_text(text: str, log: LogBuilder, start: int = 0) -> Iterator[tuple[int, Object]]:
    """Objects that stand one after the other from `start` on, in an array or not, counted from 1.

    Ends where something else comes; what is cut or broken is skipped.
    """
    at, count, failures = start, 0, 0
    while True:
        at = _BETWEEN.match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess]
        if text[at : at + 1] != "{":
            return
        try:
            found, at = _scan(text, at)
        except _BROKEN:
            failures += 1
            log.note("a part of the JSON is cut or damaged and was skipped")
            at = text.find("{", at + 1)
            if at < 0 or failures >= _MAX_FAILURES:
                return
            continue
        count += 1
        yield count, found


def flat(found: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Object:
    """An object without objects inside: their keys joined by '/'.

    >>> flat({"step": 1, "data": {"loss": 2.5}, "val": {"loss": 3.0}})
    {'step': 1, 'loss': 2.5, 'val/loss': 3.0}
    """
    into: Object = {}
    for key, value in found.items():
        if len(into) >= _MAX_KEYS:
            break
        label = f"{prefix}{key}"[:200]
        if isinstance(value, dict):
            if depth < _MAX_DEPTH:
                inner = prefix if key in _WRAPPERS else f"{label}/"
                deeper = flat(cast("Object", value), inner, depth + 1)
                into.update((name, one) for name, one in deeper.items() if name not in into)
        elif isinstance(value, list) and step_place(label) < 1000:
            listed = cast("list[object]", value)
            if len(listed) == 2:
                into.setdefault("epoch", listed[0])  # DLLogger's [epoch, step]
            into[label] = listed
        else:
            into[label] = value
    return into


def take_objects(rows: Iterable[tuple[int, Object]], log: LogBuilder) -> None:
    """Give objects to the builder as the rows of a table.

    Raises:
        LogFull: there is no room for more rows.
    """
    rows = iter(rows)
    head = list(islice(rows, NUM_SAMPLED))
    if not head:
        return
    taker = RowTaker(log, guess_roles([flat(one) for _, one in head], log.wanted))
    layouts = _Layouts(taker)
    block: list[Any] = []
    numbers: list[int] = []
    now: Layout | None = None

    def give() -> None:
        if now is not None and not taker.take_block(block, now, numbers):
            for place, row in zip(numbers, block, strict=True):
                taker.take(row, now, place)
        block.clear()
        numbers.clear()

    for number, found in chain(head, rows):
        row = found
        layout = layouts.known.get(tuple(row))
        if layout is None:
            row, layout = layouts.of(found)
        if layout is not now or len(block) >= BLOCK_ROWS:
            give()
            now = layout
        block.append(tuple(row.values()))
        numbers.append(number)
    give()
    taker.finish()


class _Layouts:
    """The layouts of rows by their keys; of keys without end, only the first are kept."""

    def __init__(self, taker: RowTaker) -> None:
        self.known: dict[tuple[str, ...], Layout] = {}
        self._taker = taker
        self._labels: set[str] = set()

    def of(self, found: Object) -> tuple[Object, Layout]:
        """A row without objects inside, and its layout."""
        row = flat(found)
        is_full = len(self.known) >= _MAX_LAYOUTS
        if is_full:
            row = {label: value for label, value in row.items() if label in self._labels}
        keys = tuple(row)
        layout = self.known.get(keys)
        if layout is None:
            layout = self._taker.layout([(key, place) for place, key in enumerate(row)])
            if not is_full:
                self._labels.update(keys)
            if len(self.known) < 2 * _MAX_LAYOUTS:
                self.known[keys] = layout
        return row, layout


def rows_of_points(text: str, label: str) -> Iterator[tuple[int, Object]]:
    """Rows of TensorBoard's download, `[[time, step, value], …]`."""
    try:
        found = json.loads(text.lstrip("\ufeff"))
    except _BROKEN as error:
        raise LogError(f"it is not whole JSON: {str(error)[:80]}") from error
    for number, point in enumerate(cast("list[Any]", found), 1):
        if _width(point) in (2, 3):
            yield number, {"step": point[-2], label: point[-1]}


def rows_of_lists(found: Mapping[str, Any], log: LogBuilder) -> Iterator[tuple[int, Object]]:
    """Rows of an object that holds a list a column: `{"step": [1, 2], "loss": [2.5, 2.4]}`.

    A column may also be pairs of step and value, or an object with steps for keys.
    """
    columns = _columns(flat_lists(found))
    lengths = [len(values) for steps, values in columns.values() if steps is None]
    usual = max(lengths, default=0)
    shared = {key: one for key, (steps, one) in columns.items() if steps is None}
    if usual:
        whole = [key for key, values in shared.items() if len(values) == usual]
        for number, values in enumerate(zip(*(shared[key] for key in whole), strict=True), 1):
            yield number, dict(zip(whole, values, strict=True))
    for key, (steps, values) in columns.items():
        if steps is not None:
            for number, (step, value) in enumerate(zip(steps, values, strict=False), 1):
                yield number, {"step": step, key: value}
        elif len(values) != usual:
            log.note(f"{key!r} holds {len(values)} values and no steps of its own: left out")


def flat_lists(found: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The lists of an object by label; objects with whole numbers for keys count as pairs."""
    lists: dict[str, list[Any]] = {}
    pending: list[tuple[str, Mapping[str, Any], int]] = [("", found, 0)]
    while pending and len(lists) < _MAX_KEYS:
        prefix, inside, depth = pending.pop(0)
        for key, value in inside.items():
            label = f"{prefix}{key}"[:200]
            if isinstance(value, list):
                listed = cast("list[Any]", value)
                if len(listed) > 1:
                    lists.setdefault(label, listed)
            elif isinstance(value, dict) and depth < _MAX_DEPTH:
                deeper = cast("Object", value)
                if len(deeper) > 1 and all(map(str.isdecimal, deeper)):
                    lists.setdefault(label, [[step, one] for step, one in deeper.items()])
                else:
                    inner = prefix if key in _WRAPPERS else f"{label}/"
                    pending.append((inner, deeper, depth + 1))
    return lists


def _columns(lists: Mapping[str, list[Any]]) -> dict[str, tuple[list[Any] | None, list[Any]]]:
    """Steps of their own, if they have any, and values of each list of numbers."""
    columns: dict[str, tuple[list[Any] | None, list[Any]]] = {}
    for label, values in lists.items():
        first = cast("object", values[0])
        if isinstance(first, list):
            pairs = [one for one in values if _width(one) == _width(values[0])]
            if _width(pairs[0]) in (2, 3):  # TensorBoard and MLflow give (time, step, value)
                columns[label] = [one[-2] for one in pairs], [one[-1] for one in pairs]
        elif isinstance(first, (int, float, str)) or first is None:
            columns[label] = None, values
    return columns


def _width(value: Any) -> int:
    return len(cast("list[Any]", value)) if isinstance(value, list) else 0
