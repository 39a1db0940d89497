"""Finding logs, choosing a reader, and what is said where that fails."""

import math
import os

import pytest

from foreshock import logs
from foreshock.core.errors import ForeshockError, LogError
from foreshock.core.reader import Reader, Sample
from foreshock.logs import find_logs, formats, ranking, read_log


def megatron(first=1, last=8, loss=2.0):
    return "".join(
        f" iteration {n:8}/ 500 | consumed samples: {n * 64} | lm loss: {loss / n:.6E} | "
        f"loss scale: 1.0 | grad norm: {0.5 * n:.3f} |\n"
        for n in range(first, last + 1)
    )


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def of_kind(name, read, score=0.9, folder_score=0.0):
    """A reader made for a test."""
    body = {
        "name": name,
        "title": name.title(),
        "recognises": lambda self, sample: folder_score if sample.is_dir else score,
        "read": lambda self, source, log: read(source, log),
    }
    return type(name.title(), (Reader,), body)()


@pytest.fixture
def only(monkeypatch):
    def only(*readers):
        monkeypatch.setattr(logs, "_readers", lambda: {one.name: one for one in readers})

    return only


def test_every_reader_is_ranked_by_what_it_says():
    assert "megatron" in formats()
    ranked = ranking(Sample(name="x.log", text=megatron()))
    assert ranked[0][1].name == "megatron"
    assert [score for score, _ in ranked] == sorted((score for score, _ in ranked), reverse=True)
    assert all(0 < score <= 1 for score, _ in ranked)


def test_equally_sure_readers_are_ranked_by_name(only):
    only(of_kind("b", None), of_kind("a", None), of_kind("c", None, score=0.0))
    assert [reader.name for _, reader in ranking(Sample(name="x"))] == ["a", "b"]


def test_no_reader_recognises_nothing():
    for sample in (Sample(name=""), Sample(name="x", is_dir=True), Sample(name="x.log", text="hi")):
        assert ranking(sample) == []


def test_reading_recognises_the_format(write):
    seen = []
    path = write("train.log", megatron())
    log = read_log(path, progress=seen.append)
    assert (log.path, log.format, log.num_lines) == (str(path), "megatron", 8)
    assert log.runs[0].series["loss"].steps.tolist() == list(range(1, 9))
    assert sum(seen) == path.stat().st_size


def test_a_format_can_be_forced(write, only):
    def read(source, log):
        log.row(7, [("loss", 1.0)])

    only(of_kind("sure", None), of_kind("other", read, score=0.0))
    log = read_log(write("x", "y"), format="other")
    assert (log.format, log.title) == ("other", "Other")
    assert log.runs[0].series["loss"].steps.tolist() == [7]


def test_labels_map_columns(write):
    path = write("x.log", megatron())
    series = read_log(path, labels={"loss": "grad norm"}).runs[0].series
    assert series["loss"].label == "grad norm"
    assert series["loss"].values[1] == 1.0
    with pytest.raises(LogError, match="has no column 'lm_loss'; there are 'lm loss'"):
        read_log(path, labels={"loss": "lm_loss"})


def said_by(path, **kwargs):
    with pytest.raises(ForeshockError) as raised:
        read_log(path, **kwargs)
    text = str(raised.value)
    assert text.isprintable()
    assert text
    return text


def test_errors_are_one_sentence(write, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty folder").mkdir()
    log = write("x.log", megatron())
    assert "cannot be read: No such file" in said_by(tmp_path / "no\nsuch")
    assert "neither a file nor a directory" in said_by(tmp_path / "pipe")
    assert "is empty" in said_by(write("empty", ""))
    assert "is of no known format" in said_by(write("prose.txt", "We trained a model.\n" * 50))
    assert "there is no format 'nope'; there are" in said_by(log, format="nope")
    assert "was taken for" in said_by(write("prose.txt", "We trained.\n"), format="megatron")
    assert "no log of a known format is below" in said_by(tmp_path / "empty folder")


def test_an_error_after_the_first_rows_keeps_them(write, only):
    def read(source, log):
        log.row(1, [("loss", 1.0)])
        raise LogError("the rest is damaged")

    only(of_kind("half", read))
    log = read_log(write("x", "y"))
    assert len(log.runs[0].series["loss"]) == 1
    assert log.notes == ("reading stopped: the rest is damaged",)


def test_a_reader_that_fails_does_not_end_it_all(write, only):
    def read(source, log):
        if log.total_steps is None:
            raise ValueError("bad\nthing")

    def late(source, log):
        log.row(1, [("loss", 1.0)])
        raise RecursionError("deep")

    only(of_kind("bad", read), of_kind("late", late))
    said = said_by(write("x", "y"), format="bad")
    assert "whose reader failed (ValueError: bad thing): please report this" in said
    assert "RecursionError: deep" in read_log(write("x", "y"), format="late").notes[0]


def test_a_reader_that_fails_to_recognise_does_not_hide_the_others(only):
    def fail(self, sample):
        raise ZeroDivisionError

    bad = of_kind("bad", None)
    type(bad).recognises = fail
    only(bad, of_kind("good", None))
    assert [reader.name for _, reader in ranking(Sample(name="x"))] == ["good"]


def test_more_rows_than_fit_are_cut(write, only):
    def read(source, log):
        log._max_rows = 3
        for step in range(10):
            log.row(step, [("loss", 1.0)])

    only(of_kind("long", read))
    log = read_log(write("x", "y"))
    assert len(log.runs[0].series["loss"]) == 3
    assert log.notes == ("only the first 3 rows were read",)


def test_of_a_directory_the_surest_and_longest_log_is_read(write, tmp_path):
    write("out/prose.txt", "nothing\n" * 1_000)
    write("out/rank0/short.log", megatron(last=4))
    write("out/rank1/train.log", megatron(last=40))
    log = read_log(tmp_path)
    assert (log.format, len(log.runs[0].series["loss"])) == ("megatron", 40)
    assert log.notes[0] == "of 2 logs in this directory out/rank1/train.log was read"
    assert len(read_log(tmp_path, format="megatron").runs[0].series["loss"]) == 40
    assert "no log of this format" in said_by(tmp_path, format="tensorboard")


def test_find_logs_takes_files_patterns_and_directories(write, tmp_path):
    a, b = write("a.log", megatron()), write("deep/er/b.out", megatron())
    other = write("prose.weird", "x")
    write("deep/prose.txt", "nothing at all")
    write("deep/.hidden/c.log", megatron())
    write("deep/node_modules/d.log", megatron())
    write(".git/e.log", megatron())
    write("model.safetensors", megatron())
    (tmp_path / "deep" / "up").symlink_to(tmp_path)
    (tmp_path / "same.log").symlink_to(a)
    assert find_logs([tmp_path]) == [a, b]
    assert find_logs([other, a]) == [a, other]  # a file stands for itself
    assert find_logs([str(tmp_path / "*.log"), a, tmp_path]) == [a, b]
    assert find_logs([tmp_path / "**" / "*.out"]) == [b]


def test_find_logs_says_what_is_missing(tmp_path, write):
    write("empty/notes.txt", "x")
    for path, said in (
        (tmp_path / "none", "No such file"),
        (tmp_path / "*.log", "nothing matches"),
        (tmp_path / "empty", "no log of a known format was found in"),
        ("a\0b", "no path"),
    ):
        with pytest.raises(LogError, match=said):
            find_logs([path])
    with pytest.raises(LogError, match="no path at all"):
        find_logs([])


def test_a_name_with_brackets_is_no_pattern(write):
    path = write("run[1].log", megatron())
    assert find_logs([path]) == [path]


def test_a_directory_that_is_one_log(write, tmp_path, only):
    def scores(self, sample):
        files = sample.children if sample.is_dir else (sample.name,)
        return 0.9 if any(name.endswith("events.log") for name in files) else 0.0

    one = of_kind("one", None)
    type(one).recognises = scores
    only(one)
    write("a/events.log", "x")
    write("a/deeper/events.log", "x")
    write("b/train/events.log", "x")
    write("b/eval/events.log", "x")
    write("c/first/events.log", "x")
    write("c/second/events.log", "x")
    assert find_logs([tmp_path]) == [
        tmp_path / "a",
        tmp_path / "b",
        tmp_path / "c" / "first",
        tmp_path / "c" / "second",
    ]


def test_of_checkpoints_the_last_is_taken(write, tmp_path):
    for number in (20, 100, 3):
        write(f"run/checkpoint-{number}/train.log", megatron())
        write(f"done/checkpoint-{number}/train.log", megatron())
    whole = write("done/train.log", megatron())
    assert find_logs([tmp_path]) == [whole, tmp_path / "run/checkpoint-100/train.log"]


def test_a_search_is_bounded(write, tmp_path, monkeypatch):
    for number in range(30):
        write(f"d{number:02}/x.log", megatron())
    monkeypatch.setattr(logs, "MAX_CHILDREN", 40)
    assert 0 < len(find_logs([tmp_path])) < 30


def test_gzipped_logs_are_read(write):
    import gzip  # noqa: PLC0415

    log = read_log(write("x.log.gz", gzip.compress(megatron().encode())))
    assert math.isclose(log.runs[0].series["loss"].values[-1], 0.25)


def test_records_that_are_few_and_far_between_are_found(write):
    chatter = "request answered: shape [2, 4096], nothing to see here\n" * 20_000
    records = megatron(last=4).splitlines(keepends=True)
    path = write("stdout.log", chatter + records[0] + chatter + "".join(records[1:]) + chatter)
    assert ranking(logs.FileSource(path).sample()) == []
    log = read_log(path)
    assert (log.format, len(log.runs[0].series["loss"])) == ("megatron", 4)


def test_where_the_surest_reader_finds_nothing_the_next_is_asked(write, only):
    def nothing(source, log):
        del source, log

    def fails(source, log):
        raise ForeshockError("not mine")

    def reads(source, log):
        for number, _ in source.lines():
            log.row(number, [("loss", 2.0)], line=number)

    path = write("x.log", "a\nb\nc\n")
    only(of_kind("one", nothing), of_kind("two", reads, 0.5))
    assert read_log(path).format == "two"
    only(of_kind("one", nothing), of_kind("two", nothing, 0.5))
    with pytest.raises(LogError, match="taken for One, but no value"):
        read_log(path)
    only(of_kind("one", nothing), of_kind("two", fails, 0.6), of_kind("three", reads, 0.5))
    assert read_log(path).format == "three"
    with pytest.raises(LogError, match="taken for One, but no value"):
        read_log(path, format="one")
