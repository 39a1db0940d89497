"""A digest of what was decided, by which ranks see that they have decided the same."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, final

ACTED_ON: Final = frozenset(
    {
        "action_done",
        "advice",
        "alarm",
        "attempt_started",
        "beta2_lowered",
        "clip_tightened",
        "data_reordered",
        "embedding_gradients_shrunk",
        "episode_probed",
        "epsilon_raised",
        "gate_limited",
        "halted",
        "incident_closed",
        "lr_capped",
        "lr_scaled",
        "measure_due",
        "measured_before",
        "moments_reset",
        "pause_lifted",
        "paused",
        "plan",
        "plan_done",
        "process_started",
        "quarantined",
        "rejected",
        "reflow_started",
        "reflowed",
        "released",
        "skip",
        "snapshot_chosen",
        "snapshot_due",
        "snapshots_dropped",
        "state_edited",
        "strengthen_data",
        "verification",
        "weights_perturbed",
    }
)
"""Kinds of records that ranks must have alike. What only a disk has to say is not among them."""


@final
class Decided:
    """Adds up records; equal for ranks that recorded the same, at whatever time.

    >>> first, second = Decided(), Decided()
    >>> first.add({"kind": "skip", "time": 1.0, "attempt": 1, "step": 2})
    >>> second.add({"kind": "skip", "time": 9.0, "attempt": 1, "step": 2})
    >>> first.digest == second.digest
    True
    """

    def __init__(self) -> None:
        self._sum = hashlib.blake2b(digest_size=16)

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in a record, as its reader sees it; kinds that only a disk has pass by."""
        if record["kind"] in ACTED_ON:
            told = {key: value for key, value in record.items() if key != "time"}
            self._sum.update(json.dumps(told, sort_keys=True).encode())

    @property
    def digest(self) -> str:
        """128 bits in hexadecimal."""
        return self._sum.hexdigest()
