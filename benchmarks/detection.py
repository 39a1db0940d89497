"""How well trouble is found: on a corpus of real logs, and on a matrix of injected faults.

    python -m benchmarks.detection --corpus DIR --json -
    python -m benchmarks.detection --synthetic --seeds 50 --json docs/measurements/detection.json

The corpus is a folder with a `MANIFEST.jsonl` of labels (see `benchmarks.corpus_labels`). The
peers' rules (`benchmarks.peers`) are scored on the same readings. The matrix
(`benchmarks.synthetic`) compares them at equal average run length between false alarms.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.corpus_labels import load_labels
from benchmarks.corpus_scoring import Scored, read_corpus, score_ours, score_rules
from benchmarks.synthetic import QUICK, run
from benchmarks.synthetic_tables import show
from benchmarks.synthetic_traces import around_median

_LEAST_READINGS = 500
_FIGURES = {
    "class_accuracy": "class",
    "event_precision": "precision",
    "event_recall": "recall",
    "false_alarms_per_10k_steps": "false / 10k",
    "median_lead_steps": "lead",
}


def score_corpus(corpus: Path, progress: Callable[[], None]) -> tuple[dict[str, Any], list[Scored]]:
    """Every figure of the corpus, as plain values; and the logs behind them."""
    labels = load_labels(corpus)
    scored = read_corpus(labels, progress)
    read = [one for one in scored if one.log is not None]
    return {
        "logs_total": len(scored),
        "logs_read": len(read),
        "logs_refused": {one.label.id: one.refusal for one in scored if one.refusal},
        "logs_scored": sum(one.label.is_scored for one in scored),
        **score_ours(scored),
        **score_rules(scored),
        "logs": [_told(one) for one in scored],
    }, scored


def residuals_of(scored: Sequence[Scored]) -> "np.ndarray[Any, Any] | None":
    """What real losses stray from their own running median by, of the healthy long logs;
    each divided by its spread. None if there is no such log."""
    found: list[np.ndarray[Any, Any]] = []
    for one in scored:
        if one.log is None or not one.label.is_quiet:
            continue
        for logged in one.log.runs:
            loss = logged.series.get("loss")
            if loss is not None and len(loss) >= _LEAST_READINGS and np.isfinite(loss.values).all():
                strayed = around_median(loss.values[len(loss) // 5 :])
                spread = float(np.median(np.abs(strayed)))
                if spread > 0:
                    found.append(strayed / spread)
    return np.concatenate(found) if found else None


def _told(one: Scored) -> dict[str, Any]:
    inspection = one.inspection
    return {
        "id": one.label.id,
        "label": one.label.label_class,
        "format": inspection.format if inspection else None,
        "class": str(inspection.run_class) if inspection else None,
        "right": one.right if one.label.is_scored else None,
        "episodes": [
            [str(episode.kind), episode.onset_step, episode.end_step]
            for finding in (inspection.findings if inspection else ())
            for episode in finding.episodes
            if episode.matters
        ],
    }


def _show(result: dict[str, Any], console: Console) -> None:
    table = Table(title=f"{result['logs_read']} of {result['logs_total']} logs read")
    table.add_column("rule")
    for name in _FIGURES.values():
        table.add_column(name, justify="right")
    live = {f"{name}, live": figures for name, figures in result["live"].items()}
    rows = {"foreshock diagnose": result, **live, **result["peers"]}
    for name, figures in rows.items():
        cells = [figures.get(key) for key in _FIGURES]
        table.add_row(name, *("-" if cell is None else f"{cell:.3g}" for cell in cells))
    console.print(table)
    for log in result["logs"]:
        if log["right"] is False:
            console.print(f"  {log['id']}: {log['class'] or 'refused'}, labelled {log['label']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpus", type=Path, default=None, help="folder with MANIFEST.jsonl")
    parser.add_argument("--synthetic", action="store_true", help="the matrix of injected faults")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="a few seeds of one noise")
    parser.add_argument("--json", nargs="?", const="-", default=None, help="a file, or -")
    options = parser.parse_args()
    if options.corpus is None and not options.synthetic:
        parser.error("give --corpus DIR, --synthetic, or both")
    console = Console(stderr=options.json == "-")
    result: dict[str, Any] = {}
    residuals = None
    if options.corpus is not None:
        total = len(load_labels(options.corpus))
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("corpus", total=total)
            result, scored = score_corpus(options.corpus, lambda: bar.advance(task))
        residuals = residuals_of(scored)
        _show(result, console)
    if options.synthetic:
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("synthetic", total=None)
            settings: dict[str, Any] = {"seeds": options.seeds, "corpus": residuals}
            result["synthetic"] = run(
                **{**settings, **(QUICK if options.quick else {})},
                progress=lambda done, of, name: bar.update(
                    task, completed=done, total=of, description=name
                ),
            )
        show(result["synthetic"], console)
    if options.json == "-":
        json.dump(result, sys.stdout, indent=1)
        sys.stdout.write("\n")
    elif options.json is not None:
        path = Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
