"""The synthetic comparison as tables of at most 100 columns."""

import string
from typing import Any

from rich.console import Console
from rich.table import Table


def show(result: dict[str, Any], console: Console | None = None) -> None:
    """Print the standings, then for each noise the columns against the best peer."""
    console = console or Console(width=100, highlight=False)
    console.print(_standings(result))
    for part in result["noises"].values():
        console.print(_columns(part))
    keys = dict(zip(result["overall"], string.ascii_lowercase, strict=False))
    for part in result["noises"].values():
        console.print(_matrix(part, keys))
    console.print("  ".join(f"{key} {name}" for name, key in keys.items()))
    for kind, part in result["noises"].items():
        alarms = part["rules"]["foreshock"]
        for key in ("default", "tuned"):
            counts = {name: n for name, n in alarms[f"clean_alarms_{key}"].items() if n}
            text = ", ".join(f"{name} {n}" for name, n in counts.items())
            console.print(f"{kind}: our alarms on clean traces, {key}: {text or 'none'}")
        for key in ("columns_worse_than_best_peer_by_10_percent", "columns_slower_than_best_peer"):
            console.print(f"{kind}: {key}: {', '.join(part[key]) or 'none'}")


def _standings(result: dict[str, Any]) -> Table:
    steps, clean_steps = result["settings"]["target_arl_steps"], result["settings"]["clean_steps"]
    table = Table(title=f"Tuned to one alarm in {steps:,.0f} clean steps", padding=(0, 1, 0, 0))
    table.add_column("rule", no_wrap=True)
    for kind in result["noises"]:
        table.add_column(f"{kind}\nscore", justify="right")
        table.add_column("x", justify="right")
        table.add_column("own\nARL", justify="right")
    table.add_column("score\nin all", justify="right")
    table.add_column("as it\ncomes", justify="right")
    for name, overall in result["overall"].items():
        cells = [name]
        for part in result["noises"].values():
            found = part["rules"][name]
            missed = "" if found["reached"] else "*"
            cells += [_percent(found["score"]), f"{found['factor']:.2g}{missed}"]
            cells.append(_steps(found["arl_default"], clean_steps))
        cells += [_percent(overall["score"]), _percent(overall["score_default"])]
        table.add_row(*cells, style="bold" if _is_ours(result, name) else None)
    table.caption = (
        "score: mean rate over all faults, in percent; x: factor on the rule's own threshold "
        "(*: the target cannot be reached; too loud, it is compared with nobody); own ARL: "
        "with its own threshold"
    )
    return table


def _columns(part: dict[str, Any]) -> Table:
    table = Table(title=f"Noise: {part['label']}")
    for name in ("fault", "found", "delay", "as it comes", "best peer", "found", "delay", "ratio"):
        is_text = name in {"fault", "best peer"}
        table.add_column(name, justify="left" if is_text else "right", no_wrap=is_text)
    untuned = part["rules"]["foreshock"]["columns_default"]
    for column, row in part["columns"].items():
        is_worse = column in part["columns_worse_than_best_peer_by_10_percent"]
        table.add_row(
            column,
            _percent(row["rate"]),
            _number(row["delay"]),
            _percent(untuned[column]["rate"]),
            row["best_peer"] if row["best_rate"] else "-",
            _percent(row["best_rate"]),
            _number(row["best_delay"]),
            "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
            style="red" if is_worse else None,
        )
    return table


def _matrix(part: dict[str, Any], keys: dict[str, str]) -> Table:
    table = Table(title=f"Found, in percent: {part['label']}", padding=(0, 0), box=None)
    table.add_column("fault", no_wrap=True)
    for key in keys.values():
        table.add_column(key, justify="right", min_width=4)
    for column in part["rules"]["foreshock"]["columns"]:
        rates = [part["rules"][name]["columns"][column]["rate"] for name in keys]
        table.add_row(column, *(_percent(rate) if rate else "." for rate in rates))
    return table


def _is_ours(result: dict[str, Any], name: str) -> bool:
    return any(part["rules"][name]["is_ours"] for part in result["noises"].values())


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _steps(value: float | None, most: float) -> str:
    if value is None:
        return f">{most / 1000:.0f}k"
    return f"{value:.0f}" if value < 1000 else f"{value / 1000:.3g}k"
