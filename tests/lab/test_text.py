"""Real text: deterministic, never executed, and split without leaks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from foreshock.core.errors import ConfigError
from foreshock.lab import text as module
from foreshock.lab.text import Kind, TextWindows, load_text

KINDS: tuple[Kind, ...] = ("code", "english")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small standard library: 40 modules, each with its own marker, and two help topics."""
    for i in range(40):
        body = f'"""Module {i:02}."""\nraise SystemExit  # <{i:02}>\n'
        method = '\n\nclass C:\n    def f(self):\n        """Method."""\n'
        (tmp_path / f"m{i:02}.py").write_text(body + method)
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data" / "topics.py").write_text("topics = {'a': 'Of A.', 'b': 'Of B.'}\n")
    return tmp_path


def markers(text: bytes) -> set[bytes]:
    return {b"<%02d>" % i for i in range(40) if b"<%02d>" % i in text}


@pytest.mark.parametrize("kind", KINDS)
def test_the_real_library_gives_what_was_asked_for(kind: Kind) -> None:
    split = load_text(kind, limit_bytes=200_000, seed=0)
    assert (len(split.train), len(split.held_out)) == (180_000, 20_000)
    assert split == load_text(kind, limit_bytes=200_000, seed=0)
    assert split.train != load_text(kind, limit_bytes=200_000, seed=1).train
    assert split.train.count(b" the ") > 200
    is_code = split.train.count(b"self.") > 500
    assert is_code == (kind == "code")


def test_the_order_of_the_file_system_does_not_matter(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load_text("code", limit_bytes=10_000, seed=0, root=library)
    walk = os.walk
    monkeypatch.setattr(
        module.os, "walk", lambda top: ((d, s, sorted(f, reverse=True)) for d, s, f in walk(top))
    )
    assert load_text("code", limit_bytes=10_000, seed=0, root=library) == expected


def test_the_hash_seed_does_not_matter(library: Path) -> None:
    script = (
        "import sys, pathlib; from foreshock.lab.text import load_text; "
        "sys.stdout.buffer.write(b''.join(load_text(kind, limit_bytes=999, seed=5, "
        "root=pathlib.Path(sys.argv[1])).train for kind in ('code', 'english')))"
    )
    source = str(Path(module.__file__).parents[2])
    # The hash seed of this process is random, so it differs from 1 in all but a few runs.
    other = subprocess.run(
        [sys.executable, "-c", script, str(library)],
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": source},
        capture_output=True,
        check=True,
    )
    here = [load_text(kind, limit_bytes=999, seed=5, root=library).train for kind in KINDS]
    assert other.stdout == b"".join(here)


def test_documents_are_on_one_side_whatever_the_limit(library: Path) -> None:
    whole = load_text("code", limit_bytes=10_000, seed=0, held_out=0.3, root=library)
    assert markers(whole.train) | markers(whole.held_out) == {b"<%02d>" % i for i in range(40)}
    assert not markers(whole.train) & markers(whole.held_out)
    assert 4 <= len(markers(whole.held_out)) <= 20
    part = load_text("code", limit_bytes=1_000, seed=0, held_out=0.3, root=library)
    assert whole.train.startswith(part.train)
    assert whole.held_out.startswith(part.held_out)
    assert (len(part.train), len(part.held_out)) == (700, 300)


def test_code_and_its_docstrings_are_held_out_together(library: Path) -> None:
    code = load_text("code", limit_bytes=10_000, seed=0, held_out=0.3, root=library)
    english = load_text("english", limit_bytes=10_000, seed=0, held_out=0.3, root=library)
    for i in range(40):
        assert (b"<%02d>" % i in code.train) == (b"Module %02d." % i in english.train)


def test_english_is_docstrings_and_topics_without_code(library: Path) -> None:
    english = load_text("english", limit_bytes=10_000, seed=0, held_out=0.0, root=library).train
    assert english.count(b"Module ") == english.count(b"Method.") == 40
    assert b"Of A." in english
    assert b"Of B." in english
    assert b"SystemExit" not in english


def test_what_is_not_library_or_not_text_is_left_out(library: Path) -> None:
    clean = {kind: load_text(kind, limit_bytes=10_000, seed=0, root=library) for kind in KINDS}
    for folder in ("test", "tests", "site-packages", "__pycache__", "idlelib"):
        (library / folder).mkdir()
        (library / folder / "leak.py").write_text('"""Leak."""')
    (library / "latin.py").write_bytes(b'"""Leak \xe9."""')
    (library / "dangling.py").symlink_to(library / "nowhere.py")
    (library / "notes.txt").write_text("Leak.")
    for kind in KINDS:
        assert load_text(kind, limit_bytes=10_000, seed=0, root=library) == clean[kind]


def test_source_that_cannot_be_parsed_has_no_docstrings(library: Path) -> None:
    clean = load_text("english", limit_bytes=10_000, seed=0, root=library)
    (library / "broken.py").write_text('"""Leak."""\nprint "old"\n')
    (library / "nul.py").write_bytes(b'"""Leak."""\n\0\n')
    assert load_text("english", limit_bytes=10_000, seed=0, root=library) == clean


def test_a_library_without_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"0 documents of kind 'code' in .*zip archive"):
        load_text("code", limit_bytes=100, seed=0, root=tmp_path / "python311.zip")


def test_a_library_without_topics_is_named(library: Path) -> None:
    topics = library / "pydoc_data" / "topics.py"
    topics.write_text("topics = undefined_name\n")
    with pytest.raises(ConfigError, match=r"topics\.py.*kind='code'"):
        load_text("english", limit_bytes=100, seed=0, root=library)
    topics.unlink()
    with pytest.raises(ConfigError, match=r"topics\.py.*kind='code'"):
        load_text("english", limit_bytes=100, seed=0, root=library)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"kind": "french"}, "kind='french'; allowed are code, english"),
        ({"limit_bytes": 0}, "limit_bytes=0"),
        ({"held_out": 1.0}, r"held_out=1\.0"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, object], named: str) -> None:
    defaults: dict[str, object] = {"kind": "code", "limit_bytes": 100, "seed": 0}
    with pytest.raises(ConfigError, match=named):
        load_text(**(defaults | arguments))  # pyright: ignore[reportArgumentType]


def test_windows_are_the_bytes_in_order_without_overlap() -> None:
    windows = TextWindows(bytes(range(11)), context=4)
    assert len(windows) == 2
    assert [windows[i].tolist() for i in (0, 1)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert windows[0].dtype == torch.int64
    windows[0][0] = 99
    assert windows[0][0] == 0
    with pytest.raises(IndexError):
        windows[2]


def test_windows_come_back_from_their_own_bytes() -> None:
    windows = TextWindows(bytes(range(256)), context=4)
    again = TextWindows(windows.windows.tobytes(), context=4)
    assert len(again) == len(windows) == 51
    assert torch.equal(again[50], windows[50])


def test_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="4 bytes, less than one window of 5"):
        TextWindows(b"abcd", context=4)
