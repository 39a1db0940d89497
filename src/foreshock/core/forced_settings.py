"""Settings that an optimizer is held at, whatever its schedule or a loaded state says."""

from collections.abc import Callable, Mapping
from typing import Any, final


@final
class ForcedSettings:
    """Holds settings of an optimizer's groups from the forward pass of a step to its update.

    Afterwards the groups have their own again, so that a schedule goes on as if nothing were
    forced, and a snapshot holds what the run was built with. Written without torch; it lives in
    hooks of the two objects and dies with them. Probes, in which the model is not in training,
    are left alone. An override around the update, as of a rate that is lowered for a while, acts
    on the forced values. A schedule that goes by the rate that stands, as `ExponentialLR` does,
    then goes by the forced one; those that go by `initial_lr` and the step do not.

    Args:
        model: the module that is trained.
        optimizer: its optimizer.
        forced: what a group gets, from its place and its own settings; asked once a step.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        forced: Callable[[int, Mapping[str, Any]], Mapping[str, Any]],
    ) -> None:
        self._optimizer = optimizer
        self._forced = forced
        self._set: list[dict[str, tuple[Any, Any]]] = []  # by group and name: own, forced
        self._is_late = False  # an override held the values when they were to be given back
        model.register_forward_pre_hook(self._force)
        optimizer.register_step_post_hook(self._give_back)
        optimizer.register_state_dict_pre_hook(self._before_state)
        optimizer.register_load_state_dict_post_hook(self._forget)

    def _force(self, model: Any, inputs: Any) -> None:
        if not model.training:
            return
        groups: list[dict[str, Any]] = self._optimizer.param_groups
        if self._set and not self._is_late and all(map(_stands, groups, self._set)):
            return  # a later micro-step, or one after a skipped update that no schedule followed
        self._restore()
        self._forget(self._optimizer)
        for place, group in enumerate(groups):
            wanted = self._forced(place, group)
            self._set.append({name: (group[name], value) for name, value in wanted.items()})
            group.update(wanted)  # not in place: a value may be a tensor

    def _give_back(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # Inside an override other values stand, and it puts the forced ones back after this:
        # those are known again, and given back, before anything is forced or saved.
        self._restore()
        self._is_late = any(self._set)
        if not self._is_late:
            self._set = []

    def _before_state(self, optimizer: Any) -> None:
        if self._is_late:
            self._restore()
            self._forget(optimizer)

    def _forget(self, optimizer: Any) -> None:
        self._set, self._is_late = [], False

    def _restore(self) -> None:
        """Give back what still stands as it was forced, and forget that."""
        for group, values in zip(self._optimizer.param_groups, self._set, strict=False):
            for name, (own, value) in list(values.items()):
                if _same(group[name], value):
                    group[name] = own
                    del values[name]


def _stands(group: Mapping[str, Any], values: Mapping[str, tuple[Any, Any]]) -> bool:
    return all(_same(group[name], value) for name, (_, value) in values.items())


def _same(one: Any, other: Any) -> bool:
    return bool(one == other)
