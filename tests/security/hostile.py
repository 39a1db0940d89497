"""What is done to a log, and what a reader then owes: a log, or one error in one line."""

import re
from pathlib import Path

from hypothesis import strategies as st

from foreshock.core.errors import ForeshockError
from foreshock.core.log import Log
from foreshock.core.log_builder import LogBuilder, LogFull
from foreshock.core.reader import Reader
from foreshock.source import FileSource

TOKENS = [
    b"1e999", b"-1e999", b"nan", b"-inf", b"9" * 5000, b"9" * 25, b"-1", b"1e-320", b"0x10", b"1_0",
    b"1,,,0", b"1.2.3", b"+-3", b"--", b"1e", b"\xd9\xa3", "１２".encode(), "²".encode(), b"null",
    b"None", b"true", b"\0", b"\0" * 40, b"\xff\xfe", b"\xff", b"\xc3", b"\xed\xa0\x80",
    b"\x1b[", b"\x1b[31m", b"\r", b"\r\r\n", b"\n", b"\n\n", b"\x0b\x0c\x85", "\u2028".encode(),
    b"[" * 300, b"]" * 300, b"{" * 300, b'{"a":' * 300, b"}" * 300, b"(" * 300, b'"', b"'", b"\\",
    b"\\ud800", b",", b"," * 300, b"|" * 300, b":", b"=" * 300, b" " * 300, b"\t" * 300,
    b"%", b"%s%n",
    b"/", b"/" * 300, b"step", b"loss", b"Epoch", b"iteration", b"rank", b"tensor(",
    b"\xe2\x96\x88" * 200,
    b"__proto__", b"__class__", b"../../etc/passwd", b"<script>", b"';drop table metrics;--",
]  # fmt: skip
_NUMBER = re.compile(rb"\d+(?:\.\d+)?")


def _places(data: bytes, a: float, b: float) -> tuple[int, int]:
    one, two = sorted((int(a * len(data)), int(b * len(data))))
    return one, two


def _cut(data, a, b, token):
    return data[: int(a * len(data))]


def _behead(data, a, b, token):
    return data[int(a * len(data)) :]


def _drop(data, a, b, token):
    one, two = _places(data, a, b)
    return data[:one] + data[two:]


def _double(data, a, b, token):
    one, two = _places(data, a, b)
    return data[:two] + data[one:two] + data[two:]


def _swap(data, a, b, token):
    one, two = _places(data, a, b)
    return data[two:] + data[one:two] + data[:one]


def _reverse_lines(data, a, b, token):
    return b"\n".join(reversed(data.split(b"\n")))


def _first_line_again(data, a, b, token):
    """The beginning of the file once more: a header, cut or whole."""
    line = data.split(b"\n", 1)[0]
    at = data.rfind(b"\n", 0, int(a * len(data)) + 1) + 1
    return data[:at] + line[: int(b * (len(line) + 1))] + b"\n" + data[at:]


def _insert(data, a, b, token):
    place = int(a * len(data))
    return data[:place] + token + data[place:]


def _overwrite(data, a, b, token):
    place = int(a * len(data))
    return data[:place] + token + data[place + len(token) :]


def _flip(data, a, b, token):
    if not data:
        return data
    place = min(int(a * len(data)), len(data) - 1)
    return data[:place] + bytes([data[place] ^ (1 << int(b * 7.99))]) + data[place + 1 :]


def _replace_number(data, a, b, token):
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    at = found[min(int(a * len(found)), len(found) - 1)]
    return data[: at.start()] + token + data[at.end() :]


def _replace_all_numbers(data, a, b, token):
    return _NUMBER.sub(lambda match: token[:600], data)


def _replace_line_ends(data, a, b, token):
    return data.replace(b"\n", token[:300])


_CHANGES = [
    _cut, _behead, _drop, _double, _swap, _reverse_lines, _first_line_again, _insert, _insert,
    _overwrite, _flip,
    _flip, _replace_number, _replace_number, _replace_all_numbers, _replace_line_ends,
]  # fmt: skip

_places_in_file = st.floats(0, 1)
changes = st.lists(
    st.tuples(st.sampled_from(_CHANGES), _places_in_file, _places_in_file, st.sampled_from(TOKENS)),
    min_size=1,
    max_size=5,
)


def changed(data: bytes, by) -> bytes:
    for change, a, b, token in by:
        data = change(data, a, b, token)[: 1 << 20]
    return data


def keeps_its_promise(reader: Reader, path: Path) -> Log | None:
    """Read a path by a reader itself: what it raises must be an error of ours, in one line."""
    log = LogBuilder(max_rows=2_000_000)
    try:
        source = FileSource(path, note=log.note)
        surety = reader.recognises(source.sample())
        assert 0 <= surety <= 1
        reader.read(source, log)
    except ForeshockError as error:
        assert str(error), "an error without words"
        assert str(error).isprintable(), str(error)
        return None
    except LogFull:
        pass
    read = log.finish(path=str(path), format=reader.name, title=reader.title)
    for note in read.notes:
        assert note.isprintable(), note
    for run in read.runs:
        for event in run.events:
            assert event.text.isprintable(), event.text
        for one in run.series.values():
            assert len(one.steps) == len(one.values) == len(one.clock) == len(one)
    return read


def giant_lines(sample: bytes, size: int):
    """Long lines made of a format's own line: where a pattern goes back and forth, it hangs."""
    line = max(sample[:4000].split(b"\n")[:6], key=len) or b"x"
    words = re.findall(rb"\w+|\W", line)
    yield line * (size // len(line))
    yield line.replace(b" ", b" " * (size // max(line.count(b" "), 1)))
    for filler in (b" ", b"0", b"a", b"[", b"|", b"- ", b"=1 ", b"a: ", b'"', b".", b"/1"):
        for share in (0.1, 0.35, 0.6, 0.9):
            head = b"".join(words[: int(share * len(words))])
            yield head + filler * (size // len(filler))


def giant_documents(sample: bytes):
    """Whole files that are deep, long or dense."""
    yield b"[" * 100_000
    yield b'{"a":' * 100_000
    yield b'[{"step": 1, "loss": ' + b"[" * 100_000
    yield b'{"log_history": [' + b'{"step": 1, "loss": {' * 50_000
    yield b'{"step": 1, "loss": ' + b"9" * 1_000_000 + b"}\n"
    yield b"step,loss\n1," + b"9" * 1_000_000 + b"\n"
    yield b"step," + b"loss," * 100_000 + b"\n" + b"1," * 100_000 + b"\n" + b"2," * 100_000 + b"\n"
    yield sample.replace(b"\n", b"\r")
    yield sample[: len(sample) // 2] + bytes(1 << 20) + sample[len(sample) // 2 :]
    yield b"\n" * 1_000_000 + sample
    yield sample * (1 + (1 << 20) // max(len(sample), 1))
