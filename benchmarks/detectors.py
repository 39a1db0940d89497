"""What detectors cost: over a long log, live on one series, and live on a thousand scopes.

python -m benchmarks.detectors [--json FILE or -] [--values 1000000]

All in one run and side by side with a yardstick, a plain Python loop that compares each value
with a fixed limit: ratios to it can be compared between machines, seconds cannot. Noise is
Gaussian around a level that falls as a loss does, with 3 % of spread.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from foreshock.catalog import make, members
from foreshock.core.detector import Detector, copy_state

_REPEATS = 3
_LIVE_STEPS = 20_000
_SETTLE_STEPS = 6_000
_WIDE_STEPS = 200


def noise(num_steps: int, num_series: int = 1) -> np.ndarray:
    """A level that falls from 10 to 3, with noise: `[T, S]`, positive."""
    rng = np.random.default_rng(0)
    level = 3 + 7 * np.exp(-np.arange(num_steps) / 2000)[:, None]
    return level * (1 + 0.03 * rng.standard_normal((num_steps, num_series)))


def best_of(work: Callable[[], Any]) -> float:
    """Processor seconds of the quickest of a few tries: what else the machine does only adds."""
    times: list[float] = []
    for _ in range(_REPEATS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def yardstick(values: np.ndarray) -> float:
    """Seconds of the plain loop."""
    listed = values[:, 0].tolist()

    def work() -> int:
        beyond = 0
        for value in listed:
            if value > 100.0:
                beyond += 1
        return beyond

    return best_of(work)


def long_log(detector: Detector, values: np.ndarray) -> float:
    """Seconds for one series as one block."""
    names, steps = [series(detector)], np.arange(len(values))
    return best_of(lambda: detector.update(detector.init(names), steps, values))


def live(detectors: Sequence[Detector], name: str, values: np.ndarray) -> float:
    """Seconds a step of all of these on one series, one step at a time."""
    settle, rest = values[:_SETTLE_STEPS], values[_SETTLE_STEPS:]
    pairs = [
        (detector, detector.update(detector.init([name]), np.arange(len(settle)), settle)[0])
        for detector in detectors
    ]
    rows = list(enumerate(rest.tolist(), len(settle)))

    def work() -> None:
        states = [(detector.update_step, copy_state(state)) for detector, state in pairs]
        for step, row in rows:
            for place, (update, state) in enumerate(states):
                states[place] = (update, update(state, step, row)[0])

    return best_of(work) / len(rows)


def wide(detector: Detector, num_scopes: int) -> float:
    """Seconds a step on many scopes."""
    values = noise(_SETTLE_STEPS + _WIDE_STEPS, num_scopes)
    signal = detector.watches[0]
    names = [f"{signal}/blocks.{scope}" for scope in range(num_scopes)]
    listed = values.tolist()
    state = detector.init(names)
    state, _ = detector.update(state, np.arange(_SETTLE_STEPS), values[:_SETTLE_STEPS])

    def work() -> None:
        going = state  # may be consumed: it just goes on in the next try
        for row in range(_SETTLE_STEPS, len(values)):
            going, _ = detector.update_step(going, row, listed[row])

    return best_of(work) / _WIDE_STEPS


def series(detector: Detector) -> str:
    return f"{detector.watches[0]}/global"


def measure(num_values: int, num_scopes: int) -> dict[str, Any]:
    detectors: list[Detector] = [make("detectors", name) for name in members("detectors")]
    values = noise(num_values)
    plain = yardstick(values)
    found: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
        "plain_loop_secs_per_million": round(plain / num_values * 1e6, 4),
        "detectors": {},
    }
    short = values[: _SETTLE_STEPS + _LIVE_STEPS]
    for detector in detectors:
        secs = long_log(detector, values)
        found["detectors"][detector.name] = {
            "log_secs_per_million": round(secs / num_values * 1e6, 4),
            "log_ratio_to_plain_loop": round(secs / plain, 2),
            "live_us": round(live([detector], series(detector), short) * 1e6, 3),
            "scopes_us": round(wide(detector, num_scopes) * 1e6, 1),
            "every_scope": detector.every_scope,
        }
    found["live_us_all"] = {
        f"{signal}/global": round(live(watching, f"{signal}/global", short) * 1e6, 2)
        for signal in ("loss", "grad_norm")
        if (watching := [one for one in detectors if signal in one.watches])
    }
    found["num_scopes"] = num_scopes
    found["scopes_us_default"] = round(
        sum(entry["scopes_us"] for entry in found["detectors"].values() if entry["every_scope"]), 1
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures there; - prints them")
    parser.add_argument("--values", type=int, default=1_000_000, help="length of the long log")
    parser.add_argument("--scopes", type=int, default=1000)
    options = parser.parse_args()
    if options.values < _SETTLE_STEPS + 1 or options.scopes < 1:
        parser.error(f"needed are more than {_SETTLE_STEPS} values and at least one scope")

    found = measure(options.values, options.scopes)
    if options.json == "-":
        print(json.dumps(found))
        return
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n")
    print(f"plain loop: {found['plain_loop_secs_per_million']:.3f} s a million values")
    print(f"{'':<18}{'log, s/million':>15}{'x plain':>9}{'live, us':>10}", end="")
    print(f"{options.scopes:>10} scopes, us")
    for name, entry in found["detectors"].items():
        mark = "" if entry["every_scope"] else "  (not by default)"
        print(
            f"{name:<18}{entry['log_secs_per_million']:>15.3f}"
            f"{entry['log_ratio_to_plain_loop']:>9.2f}{entry['live_us']:>10.2f}"
            f"{entry['scopes_us']:>10.0f}{mark}"
        )
    for name, cost in found["live_us_all"].items():
        print(f"all that watch {name}: {cost:.2f} us a step")
    print(f"{options.scopes} scopes, those that watch each: {found['scopes_us_default']:.0f} us")


if __name__ == "__main__":
    main()
