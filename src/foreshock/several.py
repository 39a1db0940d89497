"""Several optimizers, or several schedules, as one: each parameter keeps its own update."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, cast

import torch

from foreshock.core.errors import ConfigError


class _States(MutableMapping[torch.Tensor, Any]):
    """The states of all parameters, each in the optimizer that updates it."""

    def __init__(self, members: Sequence[torch.optim.Optimizer]) -> None:
        self._members = members

    def __getitem__(self, parameter: torch.Tensor) -> Any:
        return self._of(parameter)[parameter]

    def __setitem__(self, parameter: torch.Tensor, state: Any) -> None:
        self._of(parameter)[parameter] = state

    def __delitem__(self, parameter: torch.Tensor) -> None:
        del self._of(parameter)[parameter]

    def __iter__(self) -> Iterator[torch.Tensor]:
        for member in self._members:
            yield from member.state

    def __len__(self) -> int:
        return sum(len(member.state) for member in self._members)

    def __contains__(self, parameter: object) -> bool:
        return any(parameter in member.state for member in self._members)

    def get(self, key: torch.Tensor, default: Any = None) -> Any:
        """As of a dict: nothing is made of what is not there, as a member's own would."""
        return next((one.state[key] for one in self._members if key in one.state), default)

    def values(self) -> Any:
        """The states, member by member."""
        return [state for member in self._members for state in member.state.values()]

    def items(self) -> Any:
        """Parameters and their states, member by member."""
        return [pair for member in self._members for pair in member.state.items()]

    def _of(self, parameter: torch.Tensor) -> dict[torch.Tensor, Any]:
        for member in self._members:
            if any(parameter is one for group in member.param_groups for one in group["params"]):
                return cast("dict[torch.Tensor, Any]", member.state)
        raise KeyError("a parameter that none of these optimizers updates")


class SeveralOptimizers(torch.optim.Optimizer):
    """Optimizers of disjoint parameters, stepped in order, as one.

    Its groups are theirs, the same dicts, so that schedules made for each of them go on; its
    state is theirs. Hooks before a step come before the first of them, those after it after the
    last.

    Args:
        members: at least one, in the order in which they step.

    Raises:
        ConfigError: there is none, two update the same parameter, or one has a state dict of
            its own.
    """

    def __init__(self, members: Sequence[torch.optim.Optimizer]) -> None:
        # Not torch's own: it would take the groups apart that belong to the members.
        self.members = tuple(members)
        if not self.members:
            raise ConfigError("no optimizer was given")
        seen: set[int] = set()
        for member in self.members:
            kinds = (type(member).state_dict, type(member).load_state_dict)
            if kinds != (torch.optim.Optimizer.state_dict, torch.optim.Optimizer.load_state_dict):
                raise ConfigError(
                    f"{type(member).__name__} keeps a state dict of its own; it can be guarded "
                    "alone, but not as one of several"
                )
            mine = {id(one) for group in member.param_groups for one in group["params"]}
            if mine & seen:
                raise ConfigError(
                    f"{type(member).__name__} updates a parameter that an optimizer before it "
                    "updates too; each belongs to one"
                )
            seen |= mine
        self.defaults: dict[str, Any] = {}
        self.state = _States(self.members)  # pyright: ignore[reportAttributeAccessIssue, reportIncompatibleVariableOverride]
        for hooks in (
            "step_pre",
            "step_post",
            "state_dict_pre",
            "state_dict_post",
            "load_state_dict_pre",
            "load_state_dict_post",
        ):
            setattr(self, f"_optimizer_{hooks}_hooks", OrderedDict())
        self._warned_capturable_if_run_uncaptured = True

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All groups, member by member: the dicts that the members read at each step."""
        return [group for member in self.members for group in member.param_groups]

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Step each member.

        Raises:
            ConfigError: a closure is given.
        """
        if closure is not None:
            raise ConfigError("several optimizers cannot share a closure")
        for member in self.members:
            member.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of every member."""
        for member in self.members:
            member.zero_grad(set_to_none=set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each member its groups and states.

        Raises:
            ValueError: a member's groups are of other sizes.
        """
        first, number = 0, 0
        for member in self.members:
            groups = state_dict["param_groups"][number : number + len(member.param_groups)]
            number += len(member.param_groups)
            count = sum(len(group["params"]) for group in groups)
            states = {
                key - first: value
                for key, value in state_dict["state"].items()
                if first <= key < first + count
            }
            mine = [{**one, "params": [key - first for key in one["params"]]} for one in groups]
            member.load_state_dict({"state": states, "param_groups": mine})
            first += count

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: it has to be said to which member.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("add a parameter group to the optimizer that is to update it")

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook(self, args, kwargs)` before the first member steps."""
        return self.members[0].register_step_pre_hook(
            lambda _, args, kwargs: hook(self, args, kwargs)
        )

    def register_step_post_hook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook(self, args, kwargs)` after the last member has stepped."""
        return self.members[-1].register_step_post_hook(
            lambda _, args, kwargs: hook(self, args, kwargs)
        )


class SeveralSchedulers:
    """Schedules that step together, as one."""

    def __init__(self, members: Sequence[Any]) -> None:
        self.members = tuple(members)

    def step(self) -> None:
        """Step each of them."""
        for member in self.members:
            member.step()

    def state_dict(self) -> dict[str, Any]:
        """The state of each, by number."""
        return {str(place): member.state_dict() for place, member in enumerate(self.members)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        for place, member in enumerate(self.members):
            member.load_state_dict(state_dict[str(place)])


def as_one_optimizer(
    given: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
) -> torch.optim.Optimizer:
    """An optimizer as it is, or several of them as one.

    Raises:
        ConfigError: the sequence is empty, or two of them update the same parameter.
    """
    if not isinstance(given, list | tuple):
        return cast("torch.optim.Optimizer", given)
    several = cast("Sequence[torch.optim.Optimizer]", given)
    return several[0] if len(several) == 1 else SeveralOptimizers(several)


def as_one_scheduler(given: Any) -> Any:
    """A schedule, or None, as it is; several of them as one."""
    if not isinstance(given, list | tuple):
        return given
    several = cast("Sequence[Any]", given)
    return None if not several else SeveralSchedulers(several)


def members_of(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers that step: those of several, or the one that it is."""
    return optimizer.members if isinstance(optimizer, SeveralOptimizers) else (optimizer,)
