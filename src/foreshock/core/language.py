"""A program's language model as probes see it, and small exact tasks scored on it."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreshock.core.errors import ConfigError, ProgramError
from foreshock.core.probe import Probe


class Scored(NamedTuple):
    """What a model thinks of a row of n tokens.

    Attributes:
        losses: `[n - 1]` nats of each token but the first, given those before it.
        hits: `[n - 1]` whether that token was the likeliest one.
    """

    losses: NDArray[np.float64]
    hits: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """How a program's model reads text. Given once, used by every exact task.

    Args:
        encode: text to token ids; nothing is added at either end.
        score: `(model, rows of token ids) ->` one `Scored` a row;
            `foreshock.verification.score_tokens` does it for a module that maps `[B, T]` to
            logits `[B, T, V]`.
        context: the most tokens that a row may have.
    """

    encode: Callable[[str], Sequence[int]]
    score: Callable[[Any, Sequence[Sequence[int]]], Sequence[Scored]]
    context: int


class Task(NamedTuple):
    """A prompt with the one right continuation."""

    prompt: str
    answer: str


def task_losses(language: LanguageModel, model: Any, tasks: Sequence[Task]) -> list[float]:
    """Mean loss of each right continuation, in nats a token, teacher-forced.

    Raises:
        ProgramError: a task does not fit into the context, or encodes to nothing.
    """
    return [float(part.losses.mean()) for part in _continuations(language, model, tasks)]


def share_exact(language: LanguageModel, model: Any, tasks: Sequence[Task]) -> float:
    """Share of the tasks whose every token of the continuation was the likeliest one.

    Teacher-forced greedy decoding is right throughout exactly where free greedy decoding is.

    Raises:
        ProgramError: as `task_losses`.
    """
    right = [bool(part.hits.all()) for part in _continuations(language, model, tasks)]
    return sum(right) / len(right)


def words(rng: np.random.Generator, num_words: int, length: int = 4) -> list[str]:
    """Words of random lower-case letters, which no text has taught."""
    letters = rng.integers(ord("a"), ord("z") + 1, size=(num_words, length))
    return ["".join(map(chr, row)) for row in letters]


@dataclass(frozen=True, kw_only=True)
class TaskProbe(Probe):
    """A probe of small exact tasks: the loss of each right continuation, in nats a token.

    Args:
        language: the program's model.
        num_items: more tell a smaller fall from noise, and take longer.
        seed: of what is drawn.

    Raises:
        ConfigError: fewer than 2 items: one has no spread.
    """

    language: LanguageModel
    num_items: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_items < 2:
            raise ConfigError(
                f"probe {self.name}: num_items is {self.num_items}; it must be at least 2"
            )

    @abstractmethod
    def tasks(self) -> list[Task]:
        """The items, the same at every call."""

    def measure(self, model: Any) -> list[float]:
        return task_losses(self.language, model, self.tasks())

    def exact_share(self, model: Any) -> float | None:
        return share_exact(self.language, model, self.tasks())


def _continuations(language: LanguageModel, model: Any, tasks: Sequence[Task]) -> list[Scored]:
    """The scores of the tokens of each answer."""
    rows: list[list[int]] = []
    starts: list[int] = []
    for task in tasks:
        prompt, answer = list(language.encode(task.prompt)), list(language.encode(task.answer))
        size = len(prompt) + len(answer)
        if not prompt or not answer or size > language.context:
            raise ProgramError(
                f"a probe's task has {len(prompt)} + {len(answer)} tokens; each part needs one at "
                f"least, both together {language.context} (the context) at most: make it shorter"
            )
        rows.append(prompt + answer)
        starts.append(len(prompt) - 1)
    scored = language.score(model, rows)
    if [len(one.losses) for one in scored] != [len(row) - 1 for row in rows]:
        raise ProgramError("score must give a loss for every token of a row but the first")
    return [
        Scored(one.losses[start:], one.hits[start:])
        for one, start in zip(scored, starts, strict=True)
    ]
