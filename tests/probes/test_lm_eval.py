"""The adapter to the LM Evaluation Harness, against a stand-in for it."""

import sys
import types
from typing import Any

import pytest

from foreshock.core.errors import MissingExtra, ProgramError
from foreshock.probes.lm_eval import LmEval


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the harness is called with, in a module that answers as lm-eval 0.4 does."""
    called: dict[str, Any] = {}

    def simple_evaluate(**options: Any) -> dict[str, Any]:
        called.update(options)
        documents = [{"doc_id": 1, "acc": 0.0}, {"doc_id": 0, "acc": 1.0}]
        return {"samples": {"b": documents, "a": [{"doc_id": 0, "acc": 0.5, "metrics": ["acc"]}]}}

    package, tasks = types.ModuleType("lm_eval"), types.ModuleType("lm_eval.tasks")
    package.__dict__["simple_evaluate"] = simple_evaluate
    tasks.__dict__["TaskManager"] = lambda include_path: ("manager", include_path)
    monkeypatch.setitem(sys.modules, "lm_eval", package)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", tasks)
    return called


def test_documents_come_in_one_order_and_lower_is_better(harness: dict[str, Any]) -> None:
    probe = LmEval(tasks=["b", "a"], wrap=lambda model: f"wrapped {model}", limit=9, folder="own")
    assert probe.measure("net") == [0.5, 0.0, 1.0]  # a/0, b/0, b/1
    assert harness["model"] == "wrapped net" and harness["limit"] == 9
    assert harness["task_manager"] == ("manager", "own") and harness["log_samples"] is True
    same = LmEval(tasks=["b"], wrap=lambda model: model, higher_is_better=False, text="maths")
    assert same.measure("net") == [0.5, 1.0, 0.0]
    assert (probe.capability, same.capability) == ("lm_eval", "lm_eval/maths")


@pytest.mark.usefixtures("harness")
def test_a_metric_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ProgramError, match="no metric 'f1'; it has acc"):
        LmEval(tasks=["a"], wrap=lambda model: model, metric="f1").measure("net")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(MissingExtra, match=r"foreshock\[lm-eval\]"):
        LmEval(tasks=["a"], wrap=lambda model: model).measure(None)
