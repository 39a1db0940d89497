"""Fuzzes every reader: `python -m tools.fuzz_readers [--minutes 60] [--corpus DIR] [READER...]`.

With atheris, where it is installed (`pip install atheris`: coverage leads it), else with the
changes of the tests, drawn by hypothesis. What was found stays in the corpus directory, so that
the next run goes on from there; it lies outside the repository. Ends with 1 if a reader broke
its promise: a log, or one error in one line, in bounded time and memory.
"""

import argparse
import importlib.util
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

_MAX_INPUT_BYTES = 64 << 10
_HANGS_SECS = 60
_MAX_MEMORY_MB = 4096
_ROUND = 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*", help="names of readers; all if none is given")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--corpus", type=Path, default=Path(tempfile.gettempdir()) / "foreshock-fuzz"
    )
    parser.add_argument("--without-atheris", action="store_true")
    args = parser.parse_args()
    args.corpus.mkdir(parents=True, exist_ok=True)
    if not args.without_atheris and importlib.util.find_spec("atheris"):
        return with_atheris(args.corpus, args.minutes, args.readers)
    print(f"without atheris: drawing changes by hypothesis, examples kept in {args.corpus}")
    return with_hypothesis(args.corpus, args.minutes, args.readers)


def with_atheris(corpus: Path, minutes: float, readers: Sequence[str]) -> int:
    """libFuzzer ends the process itself: with 0 after the time, else after the first finding."""
    import atheris  # noqa: PLC0415

    with atheris.instrument_imports(include=["foreshock"]):
        from foreshock.catalog import members  # noqa: PLC0415
        from tests.readers.samples import samples  # noqa: PLC0415
        from tests.security.hostile import keeps_its_promise  # noqa: PLC0415

        names = sorted(set(readers) or members("readers"))
    known = samples()
    seeds = corpus / "atheris"
    seeds.mkdir(exist_ok=True)
    for name in names:
        _, sample = known.get(name, ("", b""))
        (seeds / f"seed-{name}").write_bytes(name.encode() + b"\n" + sample)
    folder = Path(tempfile.mkdtemp())

    def one(data: bytes) -> None:
        # The first line names the reader, so that readers that come later change nothing.
        head, _, content = data.partition(b"\n")
        name = head.decode("ascii", "replace")
        if name not in names:
            name = names[zlib.crc32(head) % len(names)]
        path = folder / known.get(name, ("x.log", b""))[0]
        path.write_bytes(content)
        keeps_its_promise(members("readers")[name](), path)

    options = [
        f"-max_total_time={int(minutes * 60)}",
        f"-max_len={_MAX_INPUT_BYTES}",
        f"-timeout={_HANGS_SECS}",
        f"-rss_limit_mb={_MAX_MEMORY_MB}",
        f"-artifact_prefix={corpus}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], str(seeds), *options], one)
    atheris.Fuzz()
    return 0


def with_hypothesis(corpus: Path, minutes: float, readers: Sequence[str]) -> int:
    """A few hundred changes a reader, round after round, until the time is over."""
    from hypothesis import HealthCheck, given, settings  # noqa: PLC0415
    from hypothesis.database import DirectoryBasedExampleDatabase  # noqa: PLC0415

    from foreshock.catalog import members  # noqa: PLC0415
    from tests.readers.samples import samples  # noqa: PLC0415
    from tests.security import hostile  # noqa: PLC0415

    known = samples()
    names = sorted(set(readers) or members("readers"))
    ends = time.monotonic() + minutes * 60
    broken: dict[str, str] = {}
    num_rounds = 0
    folder = Path(tempfile.mkdtemp())

    def fuzz(name: str) -> None:
        file, sample = known.get(name, ("x.log", b"".join(data for _, data in known.values())))
        path = folder / file

        @given(by=hostile.changes)
        @settings(
            max_examples=_ROUND,
            deadline=None,
            database=DirectoryBasedExampleDatabase(corpus / "hypothesis"),
            suppress_health_check=list(HealthCheck),
        )
        def change(by: list) -> None:
            path.write_bytes(hostile.changed(sample, by))
            hostile.keeps_its_promise(members("readers")[name](), path)

        change()

    while time.monotonic() < ends and len(broken) < len(names):
        num_rounds += 1
        for name in names:
            if name in broken or time.monotonic() > ends:
                continue
            try:
                fuzz(name)
            except Exception as error:
                broken[name] = f"{type(error).__name__}: {error}"
                print(f"{name}: {broken[name]}", flush=True)
    print(f"{num_rounds} rounds of {_ROUND} changes to each of {len(names)} formats")
    print(f"{len(broken)} readers broke their promise: {', '.join(broken) or 'none'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
