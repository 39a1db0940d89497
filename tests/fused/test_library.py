"""How the passes are compiled, kept and loaded: by whom, where, and what happens when it fails."""

import os
import shutil
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from foreshock.fused import library as module

REAL = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)

pytestmark = [
    pytest.mark.skipif(REAL is None, reason="no C compiler"),
    pytest.mark.skipif(os.name != "posix", reason="not compiled on this system"),
]

Look = Callable[[], module.Library]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This test's own; compiled fast, since nothing is run for long."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("FORESHOCK_FUSED", raising=False)
    monkeypatch.setattr(module, "_ALWAYS", ("-O0", "-shared", "-fPIC"))
    monkeypatch.setattr(module, "_TRIED", (("-fopenmp-simd",), ()))
    return tmp_path / "a cache" / "foreshock"


@pytest.fixture
def look() -> Look:
    """The look of a new process: nothing is remembered."""
    return module.library.__wrapped__


def compiler(tmp_path: Path, script: str, name: str = "my cc") -> str:
    """A fake one, whose every run leaves a line in `runs`; returns what CC is set to."""
    path = tmp_path / name
    out = 'for a; do [ "$last" = -o ] && out="$a"; last="$a"; done'
    path.write_text(f"#!/bin/sh\necho run >> '{tmp_path}/runs'\n{out}\n{script}\n")
    path.chmod(0o755)
    return f"'{path}'"


def num_runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().splitlines())


def names(folder: Path) -> list[str]:
    return [path.suffix for path in folder.iterdir()]


PASS_ON = f'exec {REAL} "$@"'


def test_compiled_once_into_a_folder_of_this_user_alone(
    cache: Path, look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler(tmp_path, PASS_ON))
    old = os.umask(0)
    try:
        first, second = look(), look()
    finally:
        os.umask(old)
    assert first.functions is not None and second.functions is not None
    assert first.said == second.said == "compiled by my cc" and num_runs(tmp_path) == 1
    assert names(cache) == [".so"]
    for path in (cache, *cache.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("cc", "said"),
    [
        ("/nowhere/cc", "compiled by"),  # the usual ones are asked then
        (f"{REAL} -g", "compiled by"),
        ("", "compiled by"),
        ("cc 'unclosed", "CC is no command"),
    ],
)
def test_what_cc_may_be(look: Look, monkeypatch: pytest.MonkeyPatch, cc: str, said: str) -> None:
    monkeypatch.setenv("CC", cc)
    found = look()
    assert said in found.said and (found.functions is not None) == ("compiled" in said)


def test_none_and_switched_off(look: Look, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("FORESHOCK_FUSED", "0")
    assert look() == (None, False, "switched off by FORESHOCK_FUSED=0")
    monkeypatch.delenv("FORESHOCK_FUSED")
    monkeypatch.setenv("PATH", "/nowhere")
    assert look() == (None, False, "no C compiler was found")
    assert not cache.exists()


FAILURES = {
    "fails": ("echo 'a warning' >&2; echo 'error: no such chip' >&2; exit 1", "no such chip"),
    "fails in silence": ("exit 3", "exit status 3"),
    "is killed": ("kill -9 $$", "exit status -9"),
    "writes nothing": ("exit 0", ""),
    "writes garbage": ('echo garbage > "$out"', ""),
    "writes another library": (f'echo "int x;" | {REAL} -shared -xc - -o "$out"', "holds no"),
    "writes half of it": (f'{REAL} "$@" && head -c 9000 "$out" > "$out.x"; mv "$out.x" "$out"', ""),
    "talks in no known encoding": (r"printf 'error: \377\376' >&2; exit 1", "error"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_compiler_that_fails(
    kind: str, look: Look, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, said = FAILURES[kind]
    monkeypatch.setenv("CC", compiler(tmp_path, script))
    found = look()
    assert found.functions is None and said in found.said
    assert "could not compile" in found.said
    assert set(names(cache)) <= {".so"}  # which is not taken for good
    monkeypatch.setenv("CC", compiler(tmp_path, PASS_ON))
    assert look().functions is not None


def test_a_compiler_that_hangs_is_ended_with_all_it_started(
    look: Look, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TIMEOUT_SECS", 1.5)
    script = f"cat; sleep 600 & echo $! > '{tmp_path}/child'; sleep 600"
    monkeypatch.setenv("CC", compiler(tmp_path, script))
    found = look()
    assert found.functions is None and "timed out" in found.said
    assert num_runs(tmp_path) == 1  # nor asked again with other flags
    assert names(cache) == []
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    deadline = time.monotonic() + 20
    while child.exists() and child.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_flags_that_it_does_not_know_are_left_out(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'case "$*" in *simd*) exit 1;; esac\n{PASS_ON}'
    monkeypatch.setenv("CC", compiler(tmp_path, script))
    assert look().functions is not None and num_runs(tmp_path) == 2


def prepared() -> Path:
    """Compiled and kept; not loaded, since a process loads one of a name only once."""
    assert REAL is not None
    folder = module._cache()
    assert folder is not None
    command = [REAL, *module._ALWAYS, *module._TRIED[0], str(module._SOURCE)]
    path = folder / f"passes-{module._key(command)}.so"
    module._compile(command, path)
    return path


EVIL = "__attribute__((constructor)) static void run(void) { system(\"touch '%s'\"); }\n"


def planted(tmp_path: Path) -> Path:
    """A library that holds what is wanted, and leaves a mark when it is loaded."""
    source, built = tmp_path / "evil.c", tmp_path / "evil.so"
    text = "#include <stdlib.h>\n" + EVIL % (tmp_path / "mark")
    text += "".join(f"int {name}(void) {{ return 0; }}\n" for name in module._FUNCTIONS)
    source.write_text(text)
    assert REAL is not None
    subprocess.run([REAL, "-shared", "-fPIC", source, "-o", built], check=True)
    return built


def _link(path: Path, evil: Path) -> None:
    path.unlink()
    path.symlink_to(evil)


def _for_the_group(path: Path, evil: Path) -> None:
    shutil.copy(evil, path)
    path.chmod(0o770)


def _for_all(path: Path, evil: Path) -> None:
    shutil.copy(evil, path)
    path.chmod(0o707)


def _given_away(path: Path, evil: Path | None = None) -> None:
    if evil is not None:
        shutil.copy(evil, path)
    os.chown(path, 12345, -1)


def _a_folder(path: Path, evil: Path) -> None:
    path.unlink()
    path.mkdir()


PLANTS = {
    "a link": _link,
    "for its group to write": _for_the_group,
    "for all to write": _for_all,
    "another user's": _given_away,
    "a folder": _a_folder,
}


@pytest.mark.parametrize("kind", PLANTS)
def test_a_planted_library_is_not_loaded(kind: str, look: Look, tmp_path: Path) -> None:
    if kind == "another user's" and os.getuid():
        pytest.skip("only root can give a file away")
    path, evil = prepared(), planted(tmp_path)
    PLANTS[kind](path, evil)
    assert look().functions is not None
    assert not (tmp_path / "mark").exists() and evil.exists()


def test_the_plant_would_have_been_seen(look: Look, tmp_path: Path) -> None:
    path, evil = prepared(), planted(tmp_path)
    path.unlink()
    shutil.copy(evil, path)
    path.chmod(0o700)
    assert look().functions is not None and (tmp_path / "mark").exists()


def _writable(path: Path) -> None:
    path.chmod(0o770)


@pytest.mark.parametrize("which", ["foreshock", "a cache"])
@pytest.mark.parametrize("spoil", [_writable, _given_away])
def test_a_folder_that_others_can_write_to_is_left_alone(
    which: str, spoil: Callable[[Path], None], cache: Path, look: Look, tmp_path: Path
) -> None:
    if spoil is _given_away and os.getuid():
        pytest.skip("only root can give a folder away")
    path, evil = prepared(), planted(tmp_path)
    shutil.copy(evil, path)
    path.chmod(0o700)
    spoil(cache if which == "foreshock" else cache.parent)
    before = path.stat()
    assert look().functions is not None
    assert not (tmp_path / "mark").exists() and path.stat() == before


def test_a_folder_that_is_a_link_is_left_alone(cache: Path, look: Look, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    cache.parent.mkdir(mode=0o700)
    cache.symlink_to(elsewhere)
    assert look().functions is not None and not list(elsewhere.iterdir())


def test_where_it_is_kept(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for unset in ("relative", "", None):  # as the rule of that variable has it
        if unset is None:
            monkeypatch.delenv("XDG_CACHE_HOME")
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert module._cache() == tmp_path.resolve() / ".cache" / "foreshock"
    monkeypatch.setenv("HOME", "relative")
    assert module._cache() is None and look().functions is not None
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    assert module._cache() is None and look().functions is not None
    assert not (tmp_path / "relative").exists()


def test_without_a_home(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", staticmethod(homeless))
    assert module._cache() is None and look().functions is not None


def test_a_disk_that_is_full_or_runs_nothing(
    look: Look, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = module._loaded

    def only_elsewhere(path: Path) -> object:
        if path.parent == cache:
            raise OSError("failed to map segment from shared object")
        return load(path)

    monkeypatch.setattr(module, "_loaded", only_elsewhere)
    assert look().functions is not None


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {"OMP_NUM_THREADS": "2", **environment}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_several_processes_at_once(cache: Path, tmp_path: Path) -> None:
    program = """
        import foreshock.fused.library as module
        module._ALWAYS, module._TRIED = ("-O0", "-shared", "-fPIC"), ((),)
        found = module.library()
        assert found.functions is not None, found
    """
    slow = compiler(tmp_path, f"sleep 0.3; {PASS_ON}")
    some = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)], env={**os.environ, "CC": slow}
        )
        for _ in range(4)
    ]
    assert [one.wait(60) for one in some] == [0] * 4
    assert names(cache) == [".so"]


@pytest.mark.parametrize(
    ("others", "threads"), [((), False), (("first",), True), (("first", "second"), False)]
)
def test_threads_only_where_there_is_one_pool_of_them(
    others: tuple[str, ...],
    threads: bool,
    look: Look,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools = {f"/{name}/libgomp.so.1" for name in others}
    monkeypatch.setattr(module, "_thread_pools", lambda: set(pools))
    monkeypatch.setattr(module, "_TRIED", (("-fopenmp",), ()))
    monkeypatch.setenv("CC", compiler(tmp_path, f'echo "$*" >> "{tmp_path}/flags"; {PASS_ON}'))
    assert look().may_thread is threads
    assert ("-fopenmp" in (tmp_path / "flags").read_text().split()) is threads


def test_one_that_brings_a_pool_of_its_own_is_not_used(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([{"/a/libgomp.so.1"}, {"/a/libgomp.so.1", "/b/libgomp.so.1"}])
    monkeypatch.setattr(module, "_thread_pools", lambda: next(answers))
    monkeypatch.setattr(module, "_TRIED", (("-fopenmp",), ()))
    monkeypatch.setenv("CC", compiler(tmp_path, PASS_ON))
    found = look()
    assert found.functions is not None and not found.may_thread and num_runs(tmp_path) == 2


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("libgomp.so.1", True),
        ("libgomp.so.1.0.0", True),
        ("libomp.so", True),
        ("libiomp5.so", True),
        ("libgomp-a34b3233.so.1", False),
    ],
)
def test_pools_by_their_names(
    name: str, shared: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    maps = (
        f"7f00-7f01 r-xp 0000 08:01 1    /x/{name}\n7f02-7f03 r--p 0000 08:01 2    /x/libm.so.6\n"
    )
    maps += "7f04-7f05 r--p 0000 08:01 3    /x/libomptarget.so\n7f06-7f07 rw-p 0 00:00 0 [heap]\n"
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda self, **k: maps if "maps" in str(self) else read(self, **k)
    )
    assert module._thread_pools() == {f"/x/{name}"}
    assert module._can_be_shared(module._thread_pools()) is shared


def test_nan_whatever_the_compiler_is_told_and_a_child_of_a_process_that_used_them() -> None:
    done = run("""
        import os, torch
        from foreshock.fused import passes
        one = torch.ones(1 << 18)
        before = passes.size_and_peak(one)
        assert passes.status().startswith("compiled"), passes.status()
        found = passes.entries([torch.tensor([1.0, float("nan"), float("inf")] * 9)])
        rows = passes.logits(torch.tensor([[1.0, float("nan")] * 9]), 0, 1)
        assert found.largest[0] != found.largest[0] and (rows != rows).all(), (found, rows)
        if os.fork() == 0:
            torch.set_num_threads(1)  # as workers of a DataLoader do
            os._exit(0 if passes.size_and_peak(one) == before == (1.0, 1.0) else 1)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    """, CC=f"{REAL} -ffast-math")  # fmt: skip
    assert done.returncode == 0, done.stderr
