"""Cases of trials kept in files, so that looks and causes can be changed and scored anew.

What lies up to the anchor's end is the same in all its trials, and kept once.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.diagnosis.runs import ANCHOR_STEP
from foreshock.core.case import BatchFinding, Case, Change, Intervention
from foreshock.core.detector import Alarm
from foreshock.core.experiment import Result
from foreshock.core.reading import json_number
from foreshock.core.timeline import Timeline

_COLUMNS = ("attempts", "steps", "committed", "values")


class Cases:
    """A folder of cases, by the key of their trial.

    Args:
        folder: made at the first `keep`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, key: str, case: Case, anchor_name: str) -> None:
        """Keep a case; its file appears whole or not at all."""
        tree = case.timeline.to_tree()
        base = self._folder / f"base-{anchor_name}.npz"
        before = tree["steps"] <= ANCHOR_STEP
        self._folder.mkdir(parents=True, exist_ok=True)
        if not base.exists():
            _write(base, {name: tree[name][before] for name in _COLUMNS})
        parts = {name: tree[name][~before] for name in _COLUMNS}
        told = {"base": base.name, "series": tree["series"], "case": _to_json(case)}
        parts["told"] = np.array(json.dumps(told))
        _write(self._path(key), parts)

    def has(self, key: str) -> bool:
        """Whether a case is kept."""
        return self._path(key).exists()

    def load(self, key: str) -> Case:
        """The case of a trial, without symptoms.

        Raises:
            FileNotFoundError: there is none.
        """
        with np.load(self._path(key), allow_pickle=False) as later:
            told = json.loads(str(later["told"]))
            parts = {name: later[name] for name in _COLUMNS}
        with np.load(self._folder / told["base"], allow_pickle=False) as base:
            tree = {name: np.concatenate([base[name], parts[name]]) for name in _COLUMNS}
        timeline = Timeline(told["series"], dtype=np.float32)
        timeline.load_tree({"series": told["series"], **tree})
        return _from_json(told["case"], timeline)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key.replace('/', '--')}.npz"


def _write(path: Path, parts: Mapping[str, Any]) -> None:
    begun = path.with_suffix(f".{os.getpid()}.begun")
    with begun.open("wb") as file:
        np.savez_compressed(file, **parts)
    begun.replace(path)


def _to_json(case: Case) -> dict[str, Any]:
    findings = case.batch_findings
    return {
        "alarms": [one.to_json() for one in case.alarms],
        "advisories": [one.to_json() for one in case.advisories],
        "facts": dict(case.facts),
        "batch_findings": None if findings is None else [_plain(one) for one in findings],
        "tried": list(case.tried),
        "starts": list(case.starts),
        "changes": [_plain(one) for one in case.changes],
        "interventions": [_plain(one) for one in case.interventions],
        "findings": [list(one) for one in case.findings],
        "results": [one.to_json() for one in case.results],
    }


def _plain(one: Any) -> dict[str, Any]:
    return {name: json_number(v) if isinstance(v, float) else v for name, v in vars(one).items()}


def _from_json(told: Mapping[str, Any], timeline: Timeline) -> Case:
    findings = told["batch_findings"]
    return Case(
        timeline=timeline,
        alarms=tuple(Alarm.from_json(one) for one in told["alarms"]),
        advisories=tuple(Alarm.from_json(one) for one in told["advisories"]),
        facts=told["facts"],
        batch_findings=None if findings is None else [BatchFinding(**one) for one in findings],
        tried=tuple(told["tried"]),
        starts=tuple(told["starts"]),
        changes=tuple(Change(**one) for one in told["changes"]),
        interventions=tuple(Intervention(**one) for one in told["interventions"]),
        findings=tuple((step, said) for step, said in told["findings"]),
        results=tuple(Result.from_json(one) for one in told["results"]),
    )
