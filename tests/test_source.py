"""Reading logs from disk: encodings, line ends, sizes, and what is no plain file."""

import gzip
import os
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock import source as source_module
from foreshock.core.errors import LogError
from foreshock.source import MAX_LINE_CHARS, FileSource, encoding_of, shown


def lines_of(path, **kwargs):
    return list(FileSource(path, **kwargs).lines())


@pytest.fixture
def write(tmp_path):
    def write(data, name="x.log"):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return write


TEXT = "step 1 | loss 2.5 µ\nstep 2 | loss 2.25 — 损失\n"


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
def test_unicode_encodings_are_recognised(write, encoding):
    assert lines_of(write(TEXT.encode(encoding))) == [
        (1, "step 1 | loss 2.5 µ"),
        (2, "step 2 | loss 2.25 — 损失"),
    ]


@pytest.mark.parametrize(("encoding", "word"), [("latin-1", "Verlust für"), ("gbk", "损失")])
def test_other_encodings_keep_their_ascii(write, encoding, word):
    (_, line), (_, last) = lines_of(write(f"{word} step 1 loss: 2.5\nok".encode(encoding)))
    assert line.endswith(" step 1 loss: 2.5")
    assert last == "ok"


def test_utf_16_letters_cut_by_a_block_are_whole(write, monkeypatch):
    monkeypatch.setattr(source_module, "BLOCK_BYTES", 7)
    assert [line for _, line in lines_of(write(TEXT.encode("utf-16")))] == TEXT.split("\n")[:2]


def test_line_ends(write):
    assert lines_of(write("a\r\nb\n\nc\rd\r\r\ne")) == [
        (1, "a"),
        (2, "b"),
        (3, ""),
        (4, "c"),
        (4, "d"),
        (5, "e"),
    ]


def test_a_final_line_end_makes_no_line(write):
    assert lines_of(write("a\n")) == [(1, "a")]
    assert lines_of(write("a\r\n")) == [(1, "a")]


@given(
    parts=st.lists(st.sampled_from(["a", "bc", "\n", "\r\n", "\r"]), max_size=12),
    block=st.integers(2, 5),
)
@settings(max_examples=200, deadline=None)
def test_any_cut_into_blocks_gives_the_same_lines(parts, block, tmp_path_factory):
    path = tmp_path_factory.mktemp("cut") / "x"
    path.write_bytes("".join(parts).encode())
    before = lines_of(path)
    texts = list(FileSource(path).texts())
    assert all(text.endswith("\n") for _, text in texts)
    assert [
        (first + place, line)
        for first, text in texts
        for place, line in enumerate(text[:-1].split("\n"))
    ] == before
    old, source_module.BLOCK_BYTES = source_module.BLOCK_BYTES, block
    try:
        assert lines_of(path) == before
    finally:
        source_module.BLOCK_BYTES = old


def test_progress_bars_count_as_one_line_even_across_blocks(write, monkeypatch):
    monkeypatch.setattr(source_module, "BLOCK_BYTES", 16)
    bar = "\r".join(f" {percent}%|##" for percent in range(100))
    read = lines_of(write(bar + "\nend\n"))
    assert len(read) == 101
    assert {number for number, _ in read[:-1]} == {1}
    assert read[-1] == (2, "end")


def test_ansi_codes_are_taken_out(write):
    assert lines_of(write("\x1b[32mstep\x1b[0m 1\x1b[K\n\x1b[1;31mloss")) == [
        (1, "step 1"),
        (2, "loss"),
    ]


def test_a_line_without_end_is_cut_and_the_next_one_is_read(write):
    notes = []
    path = write(b"x" * (5 * MAX_LINE_CHARS) + b"\nstep 7\n")
    (one, long), (two, after) = lines_of(path, note=notes.append)
    assert (one, two, after) == (1, 2, "step 7")
    assert set(long) == {"x"}
    assert len(long) <= 2 * MAX_LINE_CHARS + source_module.BLOCK_BYTES
    assert notes == [f"lines are longer than {MAX_LINE_CHARS} characters: cut"]


def test_gzip_is_unpacked_whatever_its_name(write):
    path = write(gzip.compress(TEXT.encode()))
    assert len(lines_of(path)) == 2
    assert FileSource(path).sample().lines[0].startswith("step 1")
    with pytest.raises(LogError, match="gzipped"):
        FileSource(path).local_path()


def test_a_truncated_gzip_gives_what_is_there(write):
    notes = []
    noise = random.Random(1)
    text = "".join(f"step {n} loss {noise.random()}\n" for n in range(20_000))
    path = write(gzip.compress(text.encode())[:-5_000])
    read = lines_of(path, note=notes.append)
    assert read[0] == (1, text.split("\n")[0])
    assert 1_000 < len(read) < 20_000
    assert len(notes) == 1
    assert notes[0].startswith("reading stopped: ")


def test_damaged_gzip_gives_what_is_there(write):
    notes = []
    packed = bytearray(gzip.compress(os.urandom(100_000)))
    packed[50_000:50_100] = bytes(100)
    lines_of(write(bytes(packed)), note=notes.append)
    assert notes


def test_a_gzip_bomb_is_cut(write):
    notes = []
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(300)) + packer.flush()
    size = sum(len(block) for block in FileSource(write(bomb), note=notes.append).blocks())
    assert size <= source_module.MAX_RATIO * len(bomb) + (4 << 20)
    assert "unpacks to more than" in notes[0]


def test_documents_are_bounded(write, monkeypatch):
    monkeypatch.setattr(source_module, "MAX_DOCUMENT_BYTES", 10)
    assert FileSource(write(b"0123456789")).document() == b"0123456789"
    with pytest.raises(LogError, match="larger than"):
        FileSource(write(b"0123456789a")).document()


def test_progress_adds_up_to_the_size(write):
    seen = []
    path = write(b"abc\n" * 1_000_000)
    lines_of(path, progress=seen.append)
    assert sum(seen) == path.stat().st_size
    assert len(seen) > 3


def test_links_to_files_are_followed(write, tmp_path):
    (tmp_path / "link").symlink_to(write("a\n"))
    assert lines_of(tmp_path / "link") == [(1, "a")]


def test_pipes_and_devices_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/null")):
        with pytest.raises(LogError, match="neither a file nor a directory"):
            FileSource(path)


def test_a_pipe_that_takes_the_place_of_a_file_is_refused(write):
    path = write("a")
    source = FileSource(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(LogError, match="not a plain file"):
        source.document()


def test_what_is_not_there_is_said_in_one_line(tmp_path):
    with pytest.raises(LogError, match="cannot be read: No such file") as raised:
        FileSource(tmp_path / "a\nb\x1b[31m")
    assert str(raised.value).isprintable()
    with pytest.raises(LogError, match="no path"):
        FileSource(Path("a\0b"))
    assert shown(Path(os.fsdecode(b"caf\xe9"))).isprintable()


def test_unreadable_files_are_refused(write, monkeypatch):
    source = FileSource(write("a"))

    def refuse(path, flags):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(source_module.os, "open", refuse)
    with pytest.raises(LogError, match=r"x\.log cannot be read: Permission denied"):
        list(source.lines())


def test_a_directory_lists_its_plain_files(tmp_path):
    for name in ("b.log", "a/c.log", ".git/config", "node_modules/x.json", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    source = FileSource(tmp_path)
    assert source.children() == ["a/c.log", "b.log"]
    assert source.sample().children == ("a/c.log", "b.log")
    assert list(source.child("a/c.log").lines()) == [(1, "x")]
    for name in ("../x", "/etc/passwd", "a/../../x"):
        with pytest.raises(LogError, match="leads out of"):
            source.child(name)
    with pytest.raises(LogError, match="is a directory"):
        source.document()


def test_a_huge_directory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(source_module, "MAX_CHILDREN", 20)
    for number in range(50):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}/x").write_text("x")
    notes = []
    assert len(FileSource(tmp_path, note=notes.append).children()) <= 20
    assert notes == ["only the first 20 files were looked at"]


def test_the_sample_shows_head_middle_and_end(write):
    filler = "." * 99 + "\n"
    text = "head\n" + filler * 10_000 + "middle\n" * 3_000 + filler * 10_000 + "end\n"
    sample = FileSource(write(text)).sample()
    assert sample.head.startswith(b"head")
    assert {"head", "middle", "end"} <= set(sample.lines)
    assert len(sample.text) < 500_000


def test_encoding_of_short_and_odd_heads():
    assert encoding_of(b"") == "utf-8"
    assert encoding_of(b"\0") == "utf-8"
    assert encoding_of(bytes(100)) == "utf-8"
    assert encoding_of("loss 1.5".encode("utf-16-be")) == "utf-16-be"
