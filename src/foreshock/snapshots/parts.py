"""The parts of a run whose state is rewound, and how each is captured and put back."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from foreshock.core.errors import SnapshotError
from foreshock.ranks.placement import layout_of, own_data, spread
from foreshock.several import members_of
from foreshock.snapshots.copying import alike, copy_all, fits, same_memory

_FSDP = "torch.distributed.fsdp."


class Part(ABC):
    """One part of the rewound state. No method changes anything else.

    Attributes:
        own: whether its state is this rank's own, where each rank writes what it holds.
        any_size: whether it may then go on on another number of ranks.
    """

    own: bool = False
    any_size: bool = True

    @abstractmethod
    def capture(self) -> Any:
        """Return the state as a tree; tensors may be the live ones."""

    @abstractmethod
    def restore(self, tree: Any) -> None:
        """Put a captured state back, bit-exactly. `tree` is not kept."""

    def like(self, path: Sequence[str], shape: tuple[int, ...]) -> torch.Tensor | None:
        """What a tensor of a captured state is laid out like that is not there yet.

        Args:
            path: where it is in the captured tree.
            shape: of the whole.
        """
        return None

    def reseed(self, seed: int) -> bool:
        """Begin a random generator anew; False of anything else, which stays as it is."""
        return False


class ModulePart(Part):
    """A module: its state dict and the buffers that the state dict leaves out.

    Where the state dict is the live tensors, by their names, they are copied into in place;
    a module with a way of its own to give or take its state is asked for it.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def capture(self) -> Any:
        state = dict(self._module.state_dict())
        extra = {name: b for name, b in self._module.named_buffers() if name not in state}
        return {"state": state, "buffers": extra}

    def restore(self, tree: Any) -> None:
        live = self._live(tree["state"])
        if live is None:
            self._module.load_state_dict(tree["state"])
        else:
            copy_all(live, list(tree["state"].values()))
        buffers = dict(self._module.named_buffers())
        with torch.no_grad():
            for name, value in tree["buffers"].items():
                buffers[name].copy_(value)

    def _live(self, saved: Mapping[str, Any]) -> list[torch.Tensor] | None:
        """The tensors that a saved state goes into, or None where the module must do it."""
        for module in self._module.modules():
            own = type(module).load_state_dict is not torch.nn.Module.load_state_dict
            if own or _has_hooks(module):
                return None
        now = self._module.state_dict()
        named = dict(self._module.named_parameters(remove_duplicate=False))
        named |= dict(self._module.named_buffers(remove_duplicate=False))
        if now.keys() != saved.keys():
            return None
        found: list[torch.Tensor] = []
        for name, value in saved.items():
            given, live = now[name], named.get(name)
            if live is None or not (same_memory(given, live) and fits(live, value)):
                return None
            found.append(live)
        return found


def _has_hooks(module: torch.nn.Module) -> bool:
    """Whether loading calls hooks, other than FSDP2's: they reshard, as taking the state does."""
    before, after = module._load_state_dict_pre_hooks, module._load_state_dict_post_hooks
    hooks: list[Any] = [*before.values(), *after.values()]
    return any(not str(getattr(one, "__module__", "")).startswith(_FSDP) for one in hooks)


class OptimizerPart(Part):
    """An optimizer.

    Where its state has the same tensors as when it was captured, they are copied into in
    place. Else `load_state_dict` does it, which converts moments to the parameter's dtype;
    here each comes back in the dtype it was captured in.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def capture(self) -> Any:
        return self._optimizer.state_dict()

    def restore(self, tree: Any) -> None:
        if self._copied(tree):
            return
        self._optimizer.load_state_dict(clone_tree(tree))
        parameters = self._parameters()
        for index, saved in tree["state"].items():
            live = self._optimizer.state[parameters[index]]
            for name, value in saved.items():
                now = live[name]
                if isinstance(value, torch.Tensor) and now.dtype != value.dtype:
                    data = own_data(value).to(own_data(now).device, copy=True)
                    live[name] = spread(data, layout_of(value))

    def like(self, path: Sequence[str], shape: tuple[int, ...]) -> torch.Tensor | None:
        """The parameter, for its moments; its count of updates is of another shape."""
        parameters = self._parameters()
        if len(path) < 2 or path[0] != "state" or not path[1].isdecimal():
            return None
        index = int(path[1])
        found = parameters[index] if index < len(parameters) else None
        return found if found is not None and tuple(found.shape) == shape else None

    def _parameters(self) -> list[torch.Tensor]:
        """In the order in which the state dict numbers them."""
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def _copied(self, tree: Any) -> bool:
        """Whether everything could be copied into what is there; nothing is changed if not."""
        optimizer = self._optimizer
        for one in members_of(optimizer):
            if type(one).load_state_dict is not torch.optim.Optimizer.load_state_dict:
                return False
            if one._optimizer_load_state_dict_pre_hooks:
                return False
            if one._optimizer_load_state_dict_post_hooks:
                return False
        now = optimizer.state_dict()
        saved_groups, now_groups = tree["param_groups"], now["param_groups"]
        if len(saved_groups) != len(now_groups) or tree["state"].keys() != now["state"].keys():
            return False
        pairs = [
            *zip(now["state"].values(), tree["state"].values(), strict=True),
            *zip(optimizer.param_groups, saved_groups, strict=True),
        ]
        if [g["params"] for g in saved_groups] != [g["params"] for g in now_groups]:
            return False
        if list(now["state"]) != list(tree["state"]) or not all(alike(*pair) for pair in pairs):
            return False
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        for live, saved in pairs:
            for name, value in saved.items():
                if isinstance(value, torch.Tensor):
                    targets.append(live[name])
                    sources.append(value)
                elif name != "params":
                    live[name] = clone_tree(value)
        copy_all(targets, sources)
        return True


class StatefulPart(Part):
    """Anything with `state_dict` and `load_state_dict`: scheduler, scaler, stream, user state."""

    def __init__(self, stateful: Any) -> None:
        self._stateful = stateful

    def capture(self) -> Any:
        return self._stateful.state_dict()

    def restore(self, tree: Any) -> None:
        self._stateful.load_state_dict(clone_tree(tree))


class TorchGeneratorPart(Part):
    """A `torch.Generator`."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def capture(self) -> Any:
        return self._generator.get_state()

    def restore(self, tree: Any) -> None:
        self._generator.set_state(tree)

    def reseed(self, seed: int) -> bool:
        self._generator.manual_seed(seed)
        return True


class NumpyGeneratorPart(Part):
    """A `numpy.random.Generator`."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def capture(self) -> Any:
        return _jsonable(self._generator.bit_generator.state)

    def restore(self, tree: Any) -> None:
        self._generator.bit_generator.state = tree

    def reseed(self, seed: int) -> bool:
        bits: Any = self._generator.bit_generator
        bits.state = type(bits)(seed).state
        return True


class PythonRandomPart(Part):
    """A `random.Random`."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def capture(self) -> Any:
        return _python_state(self._generator.getstate())

    def restore(self, tree: Any) -> None:
        self._generator.setstate(_python_state_back(tree))

    def reseed(self, seed: int) -> bool:
        self._generator.seed(seed)
        return True


class GlobalRandomPart(Part):
    """The global generators: Python, NumPy, torch on the CPU and on every CUDA device in use."""

    def capture(self) -> Any:
        name, keys, position, has_gauss, gauss = np.random.get_state()
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        return {
            "python": _python_state(random.getstate()),
            "numpy": [
                name,
                np.asarray(keys, np.int64),
                int(position),
                int(has_gauss),
                float(gauss),
            ],
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if cuda else [],
        }

    def restore(self, tree: Any) -> None:
        random.setstate(_python_state_back(tree["python"]))
        name, keys, *rest = tree["numpy"]
        np.random.set_state((name, keys.astype(np.uint32), *rest))
        torch.set_rng_state(tree["torch"])
        if tree["cuda"]:
            torch.cuda.set_rng_state_all(tree["cuda"])

    def reseed(self, seed: int) -> bool:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        return True


def part_for(name: str, thing: Any) -> Part:
    """Choose how a user's object is captured.

    Raises:
        SnapshotError: it is none of the kinds that can be.
    """
    match thing:
        case torch.nn.Module():
            return ModulePart(thing)
        case torch.optim.Optimizer():
            return OptimizerPart(thing)
        case torch.Generator():
            return TorchGeneratorPart(thing)
        case np.random.Generator():
            return NumpyGeneratorPart(thing)
        case random.Random():
            return PythonRandomPart(thing)
        case _ if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
            return StatefulPart(thing)
        case _:
            raise SnapshotError(
                f"{name!r} is a {type(thing).__name__}, which cannot be rewound; track objects "
                "with state_dict and load_state_dict, or random generators"
            )


def clone_tree(tree: Any) -> Any:
    """An independent copy of a state tree; tensors are copied to the CPU."""
    if isinstance(tree, torch.Tensor):
        return spread(own_data(tree).to("cpu", copy=True), layout_of(tree))
    if isinstance(tree, np.ndarray):
        return tree.copy()
    if isinstance(tree, Mapping):
        return {key: clone_tree(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [clone_tree(value) for value in tree]
    if isinstance(tree, tuple):
        return tuple(clone_tree(value) for value in tree)
    return tree


def _python_state(state: tuple[Any, ...]) -> Any:
    version, words, gauss = state
    return [version, np.array(words, dtype=np.int64), gauss]


def _python_state_back(tree: Any) -> tuple[Any, ...]:
    version, words, gauss = tree
    return (version, tuple(int(word) for word in words), gauss)


def _jsonable(state: Any) -> Any:
    """Bit-generator states hold 128-bit integers, which JSON's integers can hold in Python."""
    if isinstance(state, Mapping):
        return {key: _jsonable(value) for key, value in state.items()}
    return state
