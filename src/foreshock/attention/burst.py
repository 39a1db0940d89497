"""The nodes of one forward, read in one go: at the last of its attention modules."""

from collections.abc import Callable
from typing import Any, final

import torch

Take = Callable[[Any], bool]


@final
class Burst:
    """Holds the nodes of a forward until its last module has come, then hands them on together.

    Between two large products every line of Python runs on cold caches; a dozen nodes read in
    a row cost little more than one. The order of the modules is learned from two forwards that
    ran all alike. Until then, and inside backward (where reentrant checkpointing runs forwards
    again), nodes are handed on as they come; and for good once a forward departs from that
    order, or backward runs in between. Of the one that does, what was held may be lost.
    """

    def __init__(self) -> None:
        self._expected: tuple[int, ...] = ()
        self._previous: tuple[int, ...] = ()
        self._seen: list[int] = []
        self._held: list[tuple[Take, Any]] = []
        self._departed = False

    def add(self, place: int, take: Take, node: Any) -> None:
        """Take in the node that a module's output came from.

        `take(node)` reads it, and is False where backward has freed it.
        """
        if torch._C._current_graph_task_id() != -1:  # inside backward
            take(node)
            return
        if not self._expected:
            self._learn(place)
        if not self._expected:
            take(node)
        elif place == self._expected[len(self._held)]:
            self._held.append((take, node))
            if len(self._held) == len(self._expected):
                self.release()
        else:
            self._depart()
            self.release()
            take(node)

    def _depart(self) -> None:
        self._expected, self._departed = (), True

    def _learn(self, place: int) -> None:
        if self._departed:
            return
        if place in self._seen:
            ran = tuple(self._seen)
            if ran == self._previous:
                self._expected = ran
            self._previous, self._seen = ran, []
        self._seen.append(place)

    def release(self) -> None:
        """Hand on what is held."""
        held, self._held = self._held, []
        for take, node in held:
            if not take(node):
                self._depart()

    def drop(self) -> None:
        """Let go of what is held."""
        self._held = []

    HOT = (add, _depart, _learn, release)
