"""How often each symptom was present with each cause, beside what the tables say.

    python -m benchmarks.diagnosis.rates --results DIR
    python -m benchmarks.diagnosis.rates --results DIR --seeds 0:5 --only lr_too_high --json

Of the small size and the seeds that tables may be calibrated on, by default. A share is the mean
degree, drawn towards how usual the symptom is over all causes (each cause counts the same) as
strongly as `--prior` cases would: with ten cases an 0 of 10 is no certainty.
"""

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.diagnosis.plans import CALIBRATION_SEEDS
from benchmarks.recovery.results import Results
from foreshock.catalog import members

PRIOR_CASES: Final = 4.0
_LEAST, _MOST = 0.01, 0.99


def rates(trials: Iterable[Mapping[str, Any]], *, prior: float = PRIOR_CASES) -> dict[str, Any]:
    """By cause and symptom: smoothed share, plain share and number of cases; and `usual`.

    Cases in which a symptom could not be looked at are not counted.
    """
    degrees: dict[str, dict[str, list[float]]] = {}
    for one in trials:
        for name, degree in one.get("symptoms", {}).items():
            degrees.setdefault(name, {}).setdefault(one["cause"], []).append(degree)
    usual: dict[str, float] = {}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, by_cause in sorted(degrees.items()):
        means = {cause: sum(some) / len(some) for cause, some in by_cause.items()}
        usual[name] = _bounded(sum(means.values()) / len(means))
        for cause, some in by_cause.items():
            share = (sum(some) + prior * usual[name]) / (len(some) + prior)
            row = {"share": round(_bounded(share), 3), "mean": round(means[cause], 3)}
            found.setdefault(cause, {})[name] = {**row, "cases": len(some)}
    usual = {name: round(share, 3) for name, share in usual.items()}
    return {"usual": usual, "causes": {cause: found[cause] for cause in sorted(found)}}


def beside_tables(
    measured: Mapping[str, Any],
    expects: Mapping[str, Mapping[str, float]],
    usual: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Rows of cause and symptom, those whose table is furthest off first, in nats.

    A symptom that a cause does not name is expected as it is usual. The distance is that of
    the two log ratios, present and absent, weighed by the measured share.
    """
    rows: list[dict[str, Any]] = []
    for cause, symptoms in measured["causes"].items():
        for name, one in symptoms.items():
            base = usual.get(name)
            if base is None:
                continue
            table = expects.get(cause, {}).get(name)
            share, now = one["share"], base if table is None else table
            off = _divergence(share, now)
            rows.append(
                {
                    "cause": cause,
                    "symptom": name,
                    "cases": one["cases"],
                    "share": share,
                    "table": table,
                    "usual_table": base,
                    "usual": measured["usual"][name],
                    "off": round(off, 3),
                }
            )
    rows.sort(key=lambda row: (-row["off"], row["cause"], row["symptom"]))
    return rows


def _divergence(share: float, table: float) -> float:
    """Nats a case that are lost by expecting `table` of what has `share`."""
    present = share * math.log(share / table)
    return present + (1 - share) * math.log((1 - share) / (1 - table))


def _bounded(share: float) -> float:
    return min(_MOST, max(_LEAST, share))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.diagnosis.rates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, required=True, help="folder of the trials")
    parser.add_argument("--seeds", help="FIRST:END; those for calibration by default")
    parser.add_argument("--sizes", default="small")
    parser.add_argument("--only", default="", help="causes")
    parser.add_argument("--prior", type=float, default=PRIOR_CASES)
    parser.add_argument("--least", type=float, default=0.0, help="of `off`, to be shown")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    first, end = CALIBRATION_SEEDS.start, CALIBRATION_SEEDS.stop
    if options.seeds:
        first, end = map(int, options.seeds.split(":"))
    kept = Results(options.results / "trials.jsonl").values("trial/").values()
    trials = [
        one
        for one in kept
        if one["size"] in options.sizes.split(",") and first <= one["seed"] < end
    ]
    measured = rates(trials, prior=options.prior)
    expects = {name: kind.expects for name, kind in members("causes").items()}
    looks = members("symptoms").values()
    usual = {name: share for look in looks for name, share in look.usual.items()}
    rows = beside_tables(measured, expects, usual)
    wanted = set(options.only.split(",")) - {""}
    rows = [
        row
        for row in rows
        if row["off"] >= options.least and (not wanted or row["cause"] in wanted)
    ]
    if options.json:
        print(json.dumps({"usual": measured["usual"], "rows": rows}, indent=1))
        return
    _print(rows, measured["usual"], usual)


def _print(
    rows: Sequence[Mapping[str, Any]], measured: Mapping[str, float], usual: Mapping[str, float]
) -> None:
    print(f"{'symptom':34}{'usual: measured':>16}{'table':>8}")
    for name, share in measured.items():
        table = usual.get(name)
        print(f"{name:34}{share:16.3f}{'-' if table is None else f'{table:.3f}':>8}")
    print(f"\n{'cause':28}{'symptom':34}{'cases':>6}{'share':>8}{'table':>8}{'off':>8}")
    for row in rows:
        table = f"({row['usual_table']:.2f})" if row["table"] is None else f"{row['table']:.2f}"
        print(
            f"{row['cause']:28}{row['symptom']:34}{row['cases']:6}{row['share']:8.2f}"
            f"{table:>8}{row['off']:8.2f}"
        )


if __name__ == "__main__":
    main()
