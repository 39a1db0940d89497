"""Case studies: what the tool says of five public trainings, or of their likes in small.

    python -m benchmarks.case_studies --json
    python -m benchmarks.case_studies --only palm,glm --json docs/measurements/case-studies.json

Each takes at most two minutes on one core. A file that is there already keeps the studies that
are not asked for.
"""

import argparse
import importlib
import json
import platform
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

import foreshock
from benchmarks.telling import tell

STUDIES: Final = ("bloom", "palm", "opt", "glm", "marin")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.case_studies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default=",".join(STUDIES), help=f"of {','.join(STUDIES)}")
    parser.add_argument("--json", nargs="?", const="-", help="where they are kept; printed anyway")
    options = parser.parse_args(arguments)
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(STUDIES):
        parser.error(f"there is no study {sorted(unknown)[0]!r}; there are {','.join(STUDIES)}")
    path = None if options.json in (None, "-") else Path(options.json)
    torch.set_num_threads(1)
    made = {name: made_now(name) for name in wanted}
    # Read only now: another study may have been kept meanwhile.
    kept = json.loads(path.read_text())["studies"] if path is not None and path.exists() else {}
    studies = {name: (kept | made)[name] for name in STUDIES if name in kept | made}
    tell({"studies": studies}, options.json, allow_nan=False)


def made_now(name: str) -> dict[str, Any]:
    """One study, with what it was made with."""
    module = importlib.import_module(f"benchmarks.case_studies.{name}")
    with tempfile.TemporaryDirectory() as folder:
        found = module.study(Path(folder))
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "foreshock": foreshock.__version__,
        "torch": torch.__version__,
        "machine": {"processor": platform.machine(), "threads": 1},
        **found,
    }


if __name__ == "__main__":
    main()
