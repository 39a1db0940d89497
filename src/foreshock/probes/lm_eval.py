"""Tasks of the LM Evaluation Harness, as a capability."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from foreshock.core.errors import MissingExtra, ProgramError
from foreshock.core.probe import Probe


@final
@dataclass(frozen=True, kw_only=True)
class LmEval(Probe):
    """Per-document results of `lm_eval` tasks, one value a document, lower is better.

    Args:
        tasks: names of tasks, or task configurations as `lm_eval` takes them.
        wrap: `model ->` the `lm_eval.api.model.LM` that runs it.
        metric: of each document, as the task calls it.
        higher_is_better: whether the metric is one of right answers; its value v then
            counts as 1 - v.
        limit: documents of each task at most.
        folder: where tasks of one's own are defined.
        text: tells several such probes apart; their capability is then `lm_eval/text`.

    Tasks that fetch their data need it on the disk already: nothing is loaded here, but
    `lm_eval` loads what its tasks name. Documents come in the order of the task.

    Raises:
        MissingExtra: when it measures, and lm-eval is not installed.

    Reference: Gao et al., "The Language Model Evaluation Harness", 0.4.
    """

    name: ClassVar[str] = "lm_eval"
    strengthened_by: ClassVar[str] = "data of the kind that the task asks about"
    tasks: Sequence[Any]
    wrap: Callable[[Any], Any]
    metric: str = "acc"
    higher_is_better: bool = True
    limit: int | None = None
    folder: str | None = None
    text: str = ""

    @property
    def capability(self) -> str:
        return f"{self.name}/{self.text}" if self.text else self.name

    def measure(self, model: Any) -> list[float]:
        try:
            harness = importlib.import_module("lm_eval")
            task_lists = importlib.import_module("lm_eval.tasks")
        except ModuleNotFoundError as error:
            raise MissingExtra(
                "the probe lm_eval needs lm-eval: pip install 'foreshock[lm-eval]'"
            ) from error
        known = task_lists.TaskManager(include_path=self.folder)
        result = harness.simple_evaluate(
            model=self.wrap(model),
            tasks=list(self.tasks),
            task_manager=known,
            limit=self.limit,
            log_samples=True,
            bootstrap_iters=0,
        )
        samples: Mapping[str, Sequence[Mapping[str, Any]]] = result["samples"]
        values = [
            self._value(task, sample)
            for task in sorted(samples)
            for sample in sorted(samples[task], key=lambda one: one["doc_id"])
        ]
        if not values:
            raise ProgramError(f"lm_eval returned no documents for {list(self.tasks)}")
        return values

    def _value(self, task: str, sample: Mapping[str, Any]) -> float:
        if self.metric not in sample:
            there = ", ".join(sample.get("metrics", ()))
            raise ProgramError(
                f"task {task} has no metric {self.metric!r}; it has {there or 'none'}"
            )
        value = float(sample[self.metric])
        return 1.0 - value if self.higher_is_better else value
