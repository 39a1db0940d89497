"""What watching costs a step, as a share of the plain step, side by side in one process.

    python -m benchmarks.overhead [--json] [--sizes 10M,50M] [--per-signal]
    python -m benchmarks.overhead --make-peers-env DIR
    python -m benchmarks.overhead --peers-env DIR --json

Two measures. *Direct*: the time inside a monitor's own code (its calls and its hooks) over the
time of the plain step next to it; it resolves a hundredth of a percent. *Whole step*: the
ratio of whole steps; it holds everything, and resolves a few percent.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.overhead import peers_env
from benchmarks.overhead.figures import EXPLAINED, figures, table
from benchmarks.overhead.measure import measure
from benchmarks.overhead.monitor import Monitor
from benchmarks.overhead.monitors import all_monitors
from benchmarks.overhead.ours import LEVELS, WatchMonitor
from benchmarks.overhead.training import SIZES


def main() -> None:
    options = _options()
    if options.make_peers_env:
        peers_env.make(options.make_peers_env, options.torch_index)
        return
    if options.peers_env:
        _go_on_in(options.peers_env)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.cpu_time and torch.get_num_threads() != 1:
        raise SystemExit("--cpu-time counts one thread; give --threads 1 with it")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names = options.sizes or ("1B" if device.type == "cuda" else "10M,50M")
    sizes: dict[str, Any] = {}
    for name in names.split(","):
        monitors, guard = _chosen(options)
        with tempfile.TemporaryDirectory() as folder:
            measured = measure(
                SIZES[name],
                monitors,
                guard=guard,
                device=device,
                rounds=options.rounds,
                secs=options.secs,
                folder=Path(folder),
                now=time.thread_time if options.cpu_time else time.perf_counter,
                say=lambda text, name=name: print(f"{name}: {text}", file=sys.stderr, flush=True),
            )
            sizes[name] = figures(measured)
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": _machine(device),
        "versions": _versions(),
        "clock": "CPU time of the main thread" if options.cpu_time else _clock_of(device),
        "notes": {monitor.name: monitor.notes for monitor in monitors if monitor.notes},
        "explained": EXPLAINED,
        "sizes": sizes,
    }
    print(json.dumps(result, indent=1) if options.json else table(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sizes", help="10M,50M on a CPU and 1B on a GPU; tiny for a try")
    parser.add_argument("--rounds", type=int, default=8, help="two steps of each variant a round")
    parser.add_argument("--secs", type=float, default=200, help="begin no round after so long")
    parser.add_argument("--threads", type=int, help="torch's threads; its default otherwise")
    parser.add_argument("--cpu-time", action="store_true", help="for a busy machine; one thread")
    parser.add_argument("--only", help="names of variants, with commas between them")
    parser.add_argument("--per-signal", action="store_true", help="split level full by signal")
    parser.add_argument("--peers-env", type=Path, help="run in this environment")
    parser.add_argument("--make-peers-env", type=Path, help="make such an environment, and end")
    parser.add_argument("--torch-index", help="index to take torch from when making it")
    return parser.parse_args()


def _go_on_in(environment: Path) -> None:
    """Run again with the environment's own Python, unless it is the one that runs now."""
    python = environment / "bin" / "python"
    if Path(sys.prefix).resolve() == environment.resolve():
        return
    if not python.exists():
        raise SystemExit(f"{environment} holds no bin/python; make it with --make-peers-env")
    os.execv(python, [str(python), "-m", "benchmarks.overhead", *sys.argv[1:]])


def _chosen(options: argparse.Namespace) -> tuple[list[Monitor], bool]:
    chosen: list[Monitor] = [
        WatchMonitor(level, by_signal=options.per_signal and level == "full") for level in LEVELS
    ]
    chosen += [WatchMonitor("full", exact=True), *(kind() for kind in all_monitors().values())]
    if not options.only:
        return chosen, True
    only = options.only.split(",")
    known = {monitor.name for monitor in chosen} | {"guard"}
    if unknown := set(only) - known:
        raise SystemExit(f"--only: unknown {sorted(unknown)}; known are {sorted(known)}")
    return [monitor for monitor in chosen if monitor.name in only], "guard" in only


def _machine(device: torch.device) -> dict[str, Any]:
    found = {
        "processor": platform.machine(),
        "family": _processor_family(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def _processor_family() -> str | None:
    """Vendor and family, where the system tells them; no name of the machine."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = dict(
        line.split("\t", 1) for line in text.split("\n\n")[0].splitlines() if "\t" in line
    )
    named = {key.strip(): value.strip("\t: ") for key, value in fields.items()}
    family = [named.get("vendor_id"), named.get("cpu family"), named.get("model")]
    return " ".join(part for part in family if part) or None


def _versions() -> dict[str, str]:
    packages = {kind.package for kind in all_monitors().values() if kind.package}
    found = {"python": platform.python_version()}
    for package in ("torch", "numpy", "foreshock", *sorted(packages)):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _clock_of(device: torch.device) -> str:
    return "CUDA events" if device.type == "cuda" else "perf_counter"


if __name__ == "__main__":
    main()
