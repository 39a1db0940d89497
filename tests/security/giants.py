"""`python -m tests.security.giants [--small] READER...`: giant logs in a process of little memory.

Ends with 1, and says which, if a reader raises what is no error of ours, runs out of memory or
hangs.
"""

import gzip
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from foreshock.catalog import members
from tests.readers.samples import samples
from tests.security import hostile

_MAX_BYTES = 8 << 30  # of addresses, of which Arrow and NumPy take some for themselves
_SLOW_SECS = 5.0
_HANGS_SECS = 100  # of what should take one or two, on a machine that does much else


def files(sample: bytes, size: int, is_small: bool):
    for number, line in enumerate(hostile.giant_lines(sample, size)):
        if not is_small or number % 9 in (0, 1, 4):
            yield f"line {number}", line + b"\n" + sample
    for number, document in enumerate(hostile.giant_documents(sample)):
        if not is_small or number in (0, 3, 4, 8):
            yield f"document {number}", document
    if not is_small:
        yield "bomb", gzip.compress(bytes(1 << 28))
        yield "bomb of rows", gzip.compress(sample * ((4 << 20) // len(sample)), 1)


def _hangs(number, frame):
    raise TimeoutError(f"still reading after {_HANGS_SECS} s")


def main(*names: str) -> int:
    is_small = "--small" in names
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    signal.signal(signal.SIGALRM, _hangs)
    known = samples()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            if name.startswith("-"):
                continue
            reader = members("readers")[name]()
            file, sample = known.get(name, known["megatron"])
            for what, data in files(sample, 20_000 if is_small else 1_000_000, is_small):
                path = Path(folder) / file
                path.write_bytes(data)
                start = time.monotonic()
                signal.alarm(_HANGS_SECS)
                try:
                    hostile.keeps_its_promise(reader, path)
                except BaseException:
                    failed += 1
                    print(f"{name}: {what}: {traceback.format_exc()[-700:]}", flush=True)
                finally:
                    signal.alarm(0)
                if (secs := time.monotonic() - start) > _SLOW_SECS:
                    print(f"{name}: {what}: {secs:.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
