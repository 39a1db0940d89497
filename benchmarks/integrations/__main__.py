"""What every integration can do, and what it costs.

    python -m benchmarks.integrations [--json] [--only hf,fabric] [--python hf=ENV/bin/python …]

The recovery scenario of the tests, in each framework, in a process of its own, against the
framework's own untouched loop on the surviving rows. `skip_exact`, `rollback_exact`: every weight
is bit for bit the same. `resume_exact`: the whole state after kill -9 and another start is that of
a run that was not killed. `lines_to_add`: lines of code that the documentation's example adds to
the framework's loop (`lines_removed`: those that it takes away). `overhead_pct`: what the standard
recipe with snapshots adds to the CPU time that the training's thread spends on its median step,
over that of the framework's own, `plain_step_ms`: a cost of milliseconds, so that a longer step
has a smaller one. It is the median over pairs of runs, `overhead_pct_range` the least and the most
of them; `overhead_wall_pct` is the same by the wall clock, with waiting for a disk, and with what
else the machine did (`load_average`). `against`: what is measured where a package is no
dependency; `installed` is that package still.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import foreshock
from benchmarks.integrations.loops import PACKAGES, STAND_INS
from benchmarks.integrations.snippets import lines_changed

_COLUMNS = ("installed", "skip_exact", "rollback_exact", "resume_exact", "lines_to_add",
            "overhead_pct", "plain_step_ms")  # fmt: skip


def main() -> None:
    given = _options()
    pythons = dict(one.split("=", 1) for one in given.python)
    found: dict[str, Any] = {}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("integrations", total=len(given.only))
        for name in given.only:
            progress.update(task, description=name)
            found[name] = _measured(name, pythons.get(name, sys.executable), given)
            progress.advance(task)
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "accelerator": None,
            "load_average": round(os.getloadavg()[0], 2),
        },
        "versions": {"python": platform.python_version(), "foreshock": foreshock.__version__},
        "steps": given.steps,
        "rounds": given.rounds,
        "integrations": found,
    }
    if given.json:
        print(json.dumps(result, indent=1))
    else:
        Console().print(_table(found))
    sys.exit(any("error" in one for one in found.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.integrations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default=list(PACKAGES), type=lambda text: text.split(","))
    parser.add_argument("--python", nargs="*", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--steps", type=int, default=60, help="of each timed run")
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of either kind")
    given = parser.parse_args()
    unknown = sorted({*given.only, *(one.split("=")[0] for one in given.python)} - {*PACKAGES})
    if unknown:
        parser.error(f"there is no integration {unknown[0]!r}; there are {', '.join(PACKAGES)}")
    return given


def _measured(name: str, python: str, given: argparse.Namespace) -> dict[str, Any]:
    installed = _version(PACKAGES[name], python)
    lines = lines_changed(name)
    told = {
        "installed": installed,
        "lines_to_add": None if lines is None else lines["added"],
        "lines_removed": None if lines is None else lines["removed"],
    }
    if name in STAND_INS:
        told["against"] = STAND_INS[name]
    elif installed is None:
        return {**dict.fromkeys(_COLUMNS), **told}
    sizes = ["--steps", str(given.steps), "--rounds", str(given.rounds)]
    load = round(os.getloadavg()[0], 2)
    done = subprocess.run(
        [python, "-m", "benchmarks.integrations.measure", name, *sizes],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return {**told, "error": done.stderr.strip().splitlines()[-1:]}
    return {**told, "load_average": load, **json.loads(done.stdout.splitlines()[-1])}


def _version(package: str, python: str) -> str | None:
    if python == sys.executable:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _table(found: dict[str, Any]) -> Table:
    table = Table("", *(name.replace("_", " ") for name in _COLUMNS))
    for name, one in found.items():
        told = one.get("error") or [one.get(column) for column in _COLUMNS]
        shown = f"{name} (stand-in)" if "against" in one else name
        table.add_row(shown, *("-" if value is None else str(value) for value in told))
    return table


if __name__ == "__main__":
    main()
