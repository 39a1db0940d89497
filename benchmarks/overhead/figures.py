"""The figures that come of the measured steps, and their table."""

import statistics
from collections.abc import Callable, Collection, Sequence
from typing import Any

from benchmarks.overhead.clock import TRAINING
from benchmarks.overhead.loops import CLIPPING, UPDATE
from benchmarks.overhead.measure import Measured, Pair
from benchmarks.overhead.monitor import SHARED

OURS = ("minimal", "standard", "full", "exact", "guard")
EXPLAINED = {
    "full_direct_pct": "everything that watch adds at level full; if its clip_ replaces the "
    "plain loop's clip, that call counts only as far as it takes longer than the plain clip",
    "full_direct_with_norms_pct": "the same, with that call counted whole",
    "full_net_pct": "time inside the Guard, without backward and optimizer, less the plain clip",
    "guard_update_change_pct": "how much longer the optimizer's step takes under the Guard, "
    "which hands it the clip and the verdict",
}


def figures(measured: Measured) -> dict[str, Any]:
    """The figures of one size, in percent of the plain step; medians with p10 and p90."""
    variants: dict[str, Any] = {}
    for name, pairs in measured.pairs.items():
        variants[name] = {
            "direct_pct": _of(pairs, _whole),
            "paired_ratio": _of(pairs, lambda pair: pair.watched.whole / pair.plain.whole),
            "parts_pct": _parts(measured, name),
            "steps": len(pairs),
            **_never_due(measured, name),
            **measured.facts.get(name, {}),
        }
    plain = [pair.plain for pair in measured.pairs["plain"]]
    parts = {
        label.removeprefix(TRAINING): round(
            100 * statistics.median(one.parts[label] / one.whole for one in plain), 3
        )
        for label in plain[0].parts
        if label.startswith(TRAINING)
    }
    return {
        "num_parameters": measured.num_parameters,
        "plain_step_secs": round(statistics.median(one.whole for one in plain), 5),
        "plain_parts_pct": parts,
        **_ours(measured),
        **_ratios(measured),
        "variants": variants,
        "not_run": measured.reasons,
    }


def _ours(measured: Measured) -> dict[str, Any]:
    asked = [(f"{level}_direct_pct", level, _gross) for level in OURS if level != "guard"]
    asked += [
        ("full_direct_with_norms_pct", "full", _whole),
        ("full_net_pct", "guard", _net),
        ("guard_update_change_pct", "guard", _update_change),
    ]
    return {
        key: round(_on_average(measured, name, figure), 4) if name in measured.pairs else None
        for key, name, figure in asked
    }


def _ratios(measured: Measured) -> dict[str, Any]:
    """How many times cheaper level full is than each peer; its gross cost against theirs."""
    if "full" not in measured.pairs:
        return {}
    ours = _on_average(measured, "full", _gross)
    others = [name for name in measured.pairs if name not in (*OURS, "plain")]
    return {
        f"ratio_to_{name}": round(_on_average(measured, name, _gross) / ours, 1) if ours else None
        for name in others
    }


def _on_average(measured: Measured, name: str, figure: Callable[[Pair], float]) -> float:
    """Median over alike steps, weighted by how often such a step comes.

    A plain median would lose what is measured every tenth step only. A kind of step that was
    not met counts as the smallest met one that measures all of it and more; if there is none
    it is left out, and the variant names it as `never_due`.
    """
    kinds: dict[str, list[float]] = {}
    for pair in measured.pairs[name]:
        kinds.setdefault(pair.due, []).append(figure(pair))
    shares = measured.shares.get(name, {})
    weights = {kind: shares.get(kind, 1.0) for kind in kinds}
    for kind in shares.keys() - kinds.keys():
        if (cover := _cover(kind, kinds)) is not None:
            weights[cover] += shares[kind]
    total = sum(weights[kind] * statistics.median(values) for kind, values in kinds.items())
    return total / sum(weights.values()) + (_rare(measured, name) if figure in _WHOLES else 0.0)


def _rare(measured: Measured, name: str) -> float:
    """What is due too seldom to be met, timed on its own, by its share of the steps."""
    plain = statistics.median(pair.plain.whole for pair in measured.pairs["plain"])
    source = "full" if name == "guard" else name  # the Guard measures the same
    rare = measured.facts.get(source, {}).get("rare_secs", {}).values()
    return sum(100 * secs / plain / every for secs, every in rare)


def _never_due(measured: Measured, name: str) -> dict[str, list[str]]:
    met = {pair.due for pair in measured.pairs[name]}
    missed = sorted(
        kind for kind in measured.shares.get(name, {}) if kind not in met and not _cover(kind, met)
    )
    return {"never_due": missed} if missed else {}


def _cover(kind: str, met: Collection[str]) -> str | None:
    """The met kind of step that measures all that this one does, and least besides."""
    wanted = _names(kind)
    covers = [one for one in met if _names(one) > wanted]
    return min(covers, key=lambda one: len(_names(one)), default=None)


def _names(kind: str) -> set[str]:
    return set(kind.split(", ")) - {""}


def _whole(pair: Pair) -> float:
    return 100 * pair.watched.monitor / pair.plain.whole


def _gross(pair: Pair) -> float:
    shared = pair.watched.parts.get(SHARED, 0.0)
    excess = max(0.0, shared - pair.plain.parts[CLIPPING])
    return 100 * (pair.watched.monitor - shared + excess) / pair.plain.whole


def _net(pair: Pair) -> float:
    return 100 * (pair.watched.monitor - pair.plain.parts[CLIPPING]) / pair.plain.whole


def _update_change(pair: Pair) -> float:
    return 100 * (pair.watched.parts[UPDATE] - pair.plain.parts[UPDATE]) / pair.plain.whole


def _of(pairs: Sequence[Pair], figure: Callable[[Pair], float]) -> dict[str, float]:
    values = sorted(figure(pair) for pair in pairs)
    at = [round(share * (len(values) - 1)) for share in (0.1, 0.9)]
    return {
        "median": round(statistics.median(values), 4),
        "p10": round(values[at[0]], 4),
        "p90": round(values[at[1]], 4),
    }


def _parts(measured: Measured, name: str) -> dict[str, float]:
    labels = sorted({label for pair in measured.pairs[name] for label in pair.watched.parts})
    own = [label for label in labels if not label.startswith(TRAINING)]
    return {label: round(_on_average(measured, name, _part(label)), 4) for label in own}


def _part(label: str) -> Callable[[Pair], float]:
    return lambda pair: 100 * pair.watched.parts.get(label, 0.0) / pair.plain.whole


def table(result: dict[str, Any]) -> str:
    """The figures for people."""
    lines: list[str] = []
    for size, found in result["sizes"].items():
        millions = found["num_parameters"] / 1e6
        lines += [
            f"{size}: {millions:.1f}M parameters, plain step {found['plain_step_secs']:.3f} s, of "
            "which " + ", ".join(f"{k} {v:.2f} %" for k, v in found["plain_parts_pct"].items()),
            f"  {'':<18}{'direct':>9}{'p10':>9}{'p90':>9}{'whole step':>12}{'times ours':>12}",
        ]
        for name, one in found["variants"].items():
            direct, ratio = one["direct_pct"], found.get(f"ratio_to_{name}")
            lines.append(
                f"  {name:<18}{direct['median']:>8.3f}%{direct['p10']:>8.3f}%"
                f"{direct['p90']:>8.3f}%{one['paired_ratio']['median']:>12.3f}"
                + (f"{ratio:>12.1f}" if ratio is not None else "")
            )
            if len(one["parts_pct"]) > 1:
                lines += [f"    {k:<26}{v:>8.4f}%" for k, v in one["parts_pct"].items()]
        lines += [f"  {name:<18} not run: {why}" for name, why in found["not_run"].items()]
        lines += [
            f"  {key} = {found[key]}" for key in found if key.endswith("_pct") and key[0] != "p"
        ]
        lines.append("")
    return "\n".join(lines)


_WHOLES = (_whole, _gross, _net)
"""Figures that hold everything."""
