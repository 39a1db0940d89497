"""A trial of the diagnosis benchmark, as it is kept."""

from typing import Any


def trial(kind: str, cause: str, *ranking: tuple[str, float], **changed: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "kind": kind,
        "cause": cause,
        "level": "strong",
        "size": "small",
        "seed": 7,
        "anchor": "small-plain-7",
        "strike_step": 250,
        "first_step": 241,
        "losses": [2.0] * 20,
        "seen_by": "action" if ranking else None,
    }
    if ranking:
        usual |= {"ranking": [list(one) for one in ranking], "path": "lasting"}
    return usual | changed
