"""Public reports: is the cause named from the numbers and settings that they show?

    python -m benchmarks.cases --cases DIR --json

Each report is fed with its numeric trace and its settings alone; what it says of symptoms, causes
and fixes is never read. `right` are the causes that the class established for it allows (see
`benchmarks.cases.labels`). A report is *thin* if no series of one run has as many as eight
readings, and no setting tells of a restart or of the precision: the right answer is then
`unknown`, with what to record or to try next, and is scored as such.

The reports are not part of this repository, and no text of theirs is kept in the figures.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import foreshock
from benchmarks.cases.labels import BY_CLASS, BY_KIND, label_of
from benchmarks.cases.reported import FEW_READINGS, Reported, reported
from benchmarks.diagnosis.scoring import UNKNOWN, Judged, by, reliability, shares
from benchmarks.diagnosis.trial import causes, looks
from benchmarks.telling import tell
from foreshock.core.cause import Diagnosis, diagnose


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.cases",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--cases", type=Path, required=True, help="the file of reports, or its folder"
    )
    parser.add_argument("--json", nargs="?", const="-", help="where the figures are kept")
    options = parser.parse_args(arguments)
    path = options.cases / "cases.jsonl" if options.cases.is_dir() else options.cases
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    about = {"date": datetime.now(UTC).date().isoformat(), "foreshock": foreshock.__version__}
    tell({**about, **figures(rows)}, options.json)


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all reports come to."""
    told: list[tuple[Mapping[str, Any], Reported, Diagnosis, Judged]] = []
    for row in rows:
        one = reported(row)
        found = diagnose(one.case, causes(), looks())
        ranking = [(each.cause, each.probability) for each in found.candidates]
        judged = Judged(right=label_of(row).causes, ranking=ranking)
        told.append((row, one, found, judged))
    thin = [(found, judged) for _, one, found, judged in told if one.is_thin]
    full = [(row, judged) for row, one, _, judged in told if not one.is_thin]
    return {
        "cases": len(rows),
        "thin_below_readings": FEW_READINGS,
        "thin": _thin(thin),
        "with_readings_or_settings": {
            **shares([judged for _, judged in full]),
            "by_class": by((_group(row), judged) for row, judged in full),
        },
        "all": shares([judged for _, _, _, judged in told]),
        "answered_rightly": _share(
            [
                (one.is_thin and judged.first == UNKNOWN) or judged.is_right
                for _, one, _, judged in told
            ]
        ),
        "reliability": reliability(judged for _, _, _, judged in told),
        "by_case": {
            row["id"]: {
                "class": _group(row),
                "readings": one.num_readings,
                "settings": list(one.told),
                "thin": one.is_thin,
                "alarms_by": one.alarms_by,
                "said": [[cause, round(p, 3)] for cause, p in (judged.ranking or ())[:3]],
                "right": judged.is_right,
                "right_causes": sorted(judged.right),
            }
            for row, one, _, judged in told
        },
        "labels": {
            name: {"causes": sorted(label.causes), "reason": label.reason}
            for name, label in {**BY_KIND, **BY_CLASS}.items()
        },
    }


def _thin(rows: Sequence[tuple[Diagnosis, Judged]]) -> dict[str, Any]:
    """`unknown` is right; so is a right cause, which is then luck."""
    judged = [one for _, one in rows]
    first = [one.first for one in judged]
    return {
        "cases": len(judged),
        "unknown": sum(one == UNKNOWN for one in first),
        "says_what_next": sum(bool(found.top.settled_by) for found, _ in rows),
        "right_cause_first": sum(one.is_right and one.first != UNKNOWN for one in judged),
        "another_cause_first": sum(not one.is_right and one.first != UNKNOWN for one in judged),
        "wrongly_confident": sum(one.is_wrongly_confident for one in judged),
    }


def _group(row: Mapping[str, Any]) -> str:
    return row["kind"] if row["kind"] in BY_KIND else row["cause_class"]


def _share(hits: Sequence[bool]) -> float | None:
    return round(sum(hits) / len(hits), 4) if hits else None


if __name__ == "__main__":
    main()
