"""Texts of other kinds: another script, mathematics, and gettext catalogues."""

import re
import struct
from pathlib import Path

import pytest

from foreshock.core.errors import ConfigError
from foreshock.lab.other_texts import catalogues, mathematics
from foreshock.lab.text import load_text


def test_another_script_has_bytes_of_its_own_and_the_same_documents_held_out() -> None:
    english = load_text("english", limit_bytes=20_000, seed=0)
    cyrillic = load_text("cyrillic", limit_bytes=20_000, seed=0)
    text = cyrillic.held_out.decode(errors="ignore")
    assert not re.search("[A-Za-z]", text)
    assert sum(byte >= 0x80 for byte in cyrillic.train) > 0.7 * len(cyrillic.train)
    assert len(english.held_out.split()[0]) == len(text.split()[0])


def test_the_mathematics_is_right_and_the_same_each_time() -> None:
    pages = mathematics(Path("nowhere"))
    assert pages.keys() == mathematics(Path("elsewhere")).keys()
    lines = pages["mathematics/0007"]().decode().splitlines()
    assert lines == pages["mathematics/0007"]().decode().splitlines()
    assert lines != pages["mathematics/0008"]().decode().splitlines()
    right = 0
    for line in lines:
        if found := re.fullmatch(r"(\d+)([+*-])(\d+)=(-?\d+)", line):
            a, b = int(found[1]), int(found[3])
            assert int(found[4]) == {"+": a + b, "-": a - b, "*": a * b}[found[2]]
            right += 1
        elif found := re.match(r"(\d+)x \+ (\d+) = (\d+), .* x = (\d+)\.", line):
            assert int(found[1]) * int(found[4]) + int(found[2]) == int(found[3])
            right += 1
    assert right > 30


def catalogue(messages: list[bytes], order: str = "<") -> bytes:
    """A gettext catalogue with a header and these translations."""
    texts = [b"Content-Type: text/plain; charset=UTF-8\n", *messages]
    start = 28 + 8 * len(texts)
    table = b""
    for text in texts:
        table += struct.pack(f"{order}2I", len(text), start)
        start += len(text) + 1
    head = struct.pack(f"{order}7I", 0x950412DE, 0, len(texts), 28, 28, 0, 0)
    return head + table + b"\0".join(texts) + b"\0"


@pytest.mark.parametrize("order", ["<", ">"])
def test_catalogues_give_their_translations(tmp_path: Path, order: str) -> None:
    folder = tmp_path / "ru" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "one.mo").write_bytes(catalogue(["Да".encode(), b"", "Нет\0Нету".encode()], order))
    (found,) = catalogues(tmp_path).values()
    assert found().decode() == "Да\nНет\nНету"
    assert load_text("languages", limit_bytes=50, seed=0, held_out=0.0, root=tmp_path).train


def test_what_is_no_catalogue_gives_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "xx" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    whole = catalogue([b"yes"])
    hostile = [b"", b"\xde\x12\x04\x95", whole[:20], b"x" * 99, catalogue([b"\xff\xfe"])]
    hostile.append(whole[:8] + b"\xff" * 4 + whole[12:])
    for place, content in enumerate(hostile):
        (folder / f"{place}.mo").write_bytes(content)
    assert {name: read() for name, read in catalogues(tmp_path).items() if read()} == {}
    with pytest.raises(ConfigError, match="gettext catalogues"):
        load_text("languages", limit_bytes=50, seed=0, root=tmp_path)
