"""The injection matrix: is the cause told that was injected?

    python -m benchmarks.diagnosis --quick --json
    python -m benchmarks.diagnosis --json docs/measurements/diagnosis.json
    python -m benchmarks.diagnosis --results DIR --only lr_jump,healthy --seeds 0:5 --sizes small
    python -m benchmarks.diagnosis --results DIR --rescore --json

Every fault that is found, at three strengths, ten seeds and two model sizes on real text, forked
from cached healthy runs; and runs with which nothing is wrong. A run is watched at the full level
until a Guard would act, or 120 steps after the strike, and its case diagnosed. May be killed at
any moment: started again with the same `--results` it goes on behind the trials that are kept.

`top1`, `top3`: shares of the cases that were seen in which the injected cause is named first, or
among three. `unknown_rate`: `unknown` is named first. `false_confident_rate`: a wrong cause has
more than 80 %. `brier`: sum of squared errors of all probabilities, 0 to 2. `unseen`: no alarm at
all, which is counted apart. Tables of causes are calibrated on seeds 0 to 4 of the small size;
`evaluation` is everything else.

`--rescore` weighs the symptoms that are kept by the causes as they are now, in seconds.
`--relook` also looks for symptoms anew, in the cases that are kept; neither trains anything.
"""

import argparse
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import foreshock
from benchmarks.diagnosis.figures import figures
from benchmarks.diagnosis.matrix import Wanted, all_kinds, look_anew, run_missing, weighed_anew
from benchmarks.diagnosis.plans import LEVELS, key_of
from benchmarks.diagnosis.runs import SIZES
from benchmarks.recovery.results import Results
from benchmarks.telling import folder_for, tell

_SEEDS, _QUICK_SEEDS = "0:10", "5:6"
_QUICK_LEVELS, _QUICK_SIZES = "medium", "small"


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    torch.set_num_threads(1)
    wanted = Wanted(
        kinds=options.only, levels=options.levels, sizes=options.sizes, seeds=options.seeds
    )
    with folder_for(options.results, options.json) as folder:
        found = measure(options, wanted, Results(folder / "trials.jsonl"))
    tell({**_about(options), **found}, options.json)


def measure(options: argparse.Namespace, wanted: Wanted, store: Results) -> dict[str, Any]:
    """Make what is missing, unless only scores are asked for; the figures of what is asked for."""
    keys = [key_of(*one) for one in wanted.trials()]
    if options.relook:
        look_anew(store, [key for key in keys if store.done(key)])
    elif not options.rescore:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
            run_missing(wanted, store, bar, jobs=options.jobs, with_experiments=options.experiments)
    trials = [store.get(key) for key in keys if store.done(key)]
    if options.rescore:
        trials = [weighed_anew(one) for one in trials]
    return figures(trials)


def _about(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "foreshock": foreshock.__version__,
        "torch": torch.__version__,
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "accelerator": None},
        "quick": options.quick,
        "seeds": [options.seeds[0], options.seeds[-1] + 1],
        "sizes": {name: dict(SIZES[name]) for name in options.sizes},
        "levels": {name: LEVELS[name] for name in options.levels},
    }


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.diagnosis",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one seed, size and strength")
    parser.add_argument("--only", help=f"of {','.join(all_kinds())}")
    parser.add_argument("--levels", help=f"of {','.join(LEVELS)}")
    parser.add_argument("--sizes", help=f"of {','.join(SIZES)}")
    parser.add_argument("--seeds", help=f"FIRST:END, {_SEEDS} by default")
    parser.add_argument("--results", type=Path, help="folder in which trials are kept")
    parser.add_argument("--jobs", type=int, default=2, help="trials side by side, a thread each")
    parser.add_argument("--experiments", action="store_true", help="settle each case by experiment")
    parser.add_argument("--rescore", action="store_true", help="weigh anew what is kept")
    parser.add_argument("--relook", action="store_true", help="look and weigh anew")
    parser.add_argument(
        "--json", nargs="?", const="-", help="where the figures are kept; printed anyway"
    )
    options = parser.parse_args(arguments)
    quick = options.quick
    levels, sizes = options.levels or (_QUICK_LEVELS if quick else None), options.sizes
    options.only = _listed(parser, "only", options.only, all_kinds())
    options.levels = _listed(parser, "levels", levels, tuple(LEVELS))
    options.sizes = _listed(
        parser, "sizes", sizes or (_QUICK_SIZES if quick else None), tuple(SIZES)
    )
    first, _, end = (options.seeds or (_QUICK_SEEDS if quick else _SEEDS)).partition(":")
    options.seeds = tuple(range(int(first), int(end)))
    if not options.seeds:
        parser.error("--seeds: there is none")
    return options


def _listed(
    parser: argparse.ArgumentParser, name: str, given: str | None, known: tuple[str, ...]
) -> tuple[str, ...]:
    if given is None:
        return known
    listed = tuple(one for one in given.split(",") if one)
    if unknown := sorted(set(listed) - set(known)):
        parser.error(f"--{name}: unknown {unknown}; known are {', '.join(known)}")
    return listed


if __name__ == "__main__":
    main()
