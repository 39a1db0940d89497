"""The order of a whole run by brute force: lists and loops, nothing shared with the package."""

from collections.abc import Sequence
from typing import Any

Id = tuple[str, str, int]
Key = tuple[str, int]


def admitted(base: Sequence[Id], records: Sequence[dict[str, Any]]) -> list[int]:
    """The raw positions whose samples a run gives out, in the order in which it does.

    Args:
        base: which sample stands at each raw position.
        records: all that was journalled of the data, in order; no reorders.
    """
    keys = [(source, index) for _, source, index in base]
    entries: dict[str, dict[str, Any]] = {}
    flows: list[dict[str, Any]] = []
    for record in records:
        if record["kind"] in ("quarantined", "rejected"):
            entry = record["entry"]
            if entry["entry_id"] not in entries:
                window = entry["window"]
                names = (
                    [tuple(one) for one in entry["ids"]] if window is None else keys[slice(*window)]
                )
                since = entry.get("since", 0) if window is None else window[0]
                entries[entry["entry_id"]] = {key: [since, 10**9] for key in names}
        elif record["kind"] == "released":
            spans = entries[record["entry_id"]]
            for key in spans if record["ids"] is None else map(tuple, record["ids"]):
                if spans[key][1] == 10**9:  # the first release stands
                    spans[key][1] = record["position"]
        elif record["kind"] == "reflow_started":
            if any(flow["record"] == record for flow in flows):
                continue
            mine = [flow for flow in flows if flow["id"] == record["entry_id"]]
            taken = set()
            for flow in mine:
                for slot, key in flow["slots"].items():
                    outcome = flow["outcomes"].get(slot)
                    if outcome == "alarmed" or (
                        slot < record["start"]
                        and slot not in flow["void"]
                        and outcome != "passed_over"
                    ):
                        taken.add(key)
            spans = entries[record["entry_id"]]
            left = [key for key, span in spans.items() if span[1] == 10**9 and key not in taken]
            if record.get("ids") is not None:
                left = [key for key in left if list(key) in record["ids"]]
            for flow in mine:
                for slot, key in flow["slots"].items():
                    if slot >= record["start"] and key in left:
                        flow["void"].add(slot)
            slots = {record["start"] + n * record["every_samples"]: k for n, k in enumerate(left)}
            flow = {"id": record["entry_id"], "slots": slots, "void": set(), "outcomes": {}}
            flows.append({**flow, "record": record})
        elif record["kind"] == "reflowed":
            for flow in reversed(flows):
                slot, key = record["slot"], tuple(record["key"])
                if flow["id"] == record["entry_id"] and flow["slots"].get(slot) == key:
                    if flow["outcomes"].setdefault(slot, record["outcome"]) == "well":
                        span = entries[flow["id"]][key]
                        span[1] = record["position"] if span[1] == 10**9 else span[1]
                    break
    found = []
    for position in range(len(base)):
        for flow in flows:
            key = flow["slots"].get(position)
            if key is None or position in flow["void"]:
                continue
            if flow["outcomes"].get(position) in ("alarmed", "passed_over"):
                continue
            holding = [
                name
                for name, e in entries.items()
                if key in e and e[key][0] <= position < e[key][1]
            ]
            places = [p for p in range(position) if keys[p] == key]
            if holding == [flow["id"]] and places and places[-1] >= entries[flow["id"]][key][0]:
                found.append(places[-1])
        held = any(
            e[keys[position]][0] <= position < e[keys[position]][1]
            for e in entries.values()
            if keys[position] in e
        )
        if not held:
            found.append(position)
    return found
