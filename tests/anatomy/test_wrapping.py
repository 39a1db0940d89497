"""However a model is wrapped, its parts have the same plain names."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from foreshock.anatomy import anatomy_of
from foreshock.lab.gpt import GPT, GPTConfig
from tests.anatomy.expectations import holds, params


@pytest.fixture(scope="module")
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def adapted(model: nn.Module) -> nn.Module:
    """Low-rank adapters as PEFT puts them: the same modules under the same names."""

    class Adapter(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base_layer = base
            down, up = nn.Linear(base.in_features, 2), nn.Linear(2, base.out_features)
            self.lora_A, self.lora_B = (
                nn.ModuleDict({"default": down}),
                nn.ModuleDict({"default": up}),
            )

    class Saved(nn.Module):
        def __init__(self, base: nn.Module) -> None:
            super().__init__()
            self.original_module = base
            self.modules_to_save = nn.ModuleDict({"default": nn.Linear(96, 256)})

    class Tuner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

    class Peft(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base_model = Tuner()

    for block in model.blocks:
        block.attn.qkv, block.ffn.up = Adapter(block.attn.qkv), Adapter(block.ffn.up)
    model.head = Saved(model.head)
    return Peft()


def with_checkpoints(model: nn.Module) -> nn.Module:
    for number in range(0, len(model.blocks), 2):
        model.blocks[number] = checkpoint_wrapper(model.blocks[number])
    return model


def sharded(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (1,))
    for number in (0, 2):  # so that classes differ among the blocks
        fully_shard(model.blocks[number], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def compiled_blocks(model: nn.Module) -> nn.Module:
    for number, one in enumerate(model.blocks):
        model.blocks[number] = torch.compile(one)
    return model


def with_parametrization(model: nn.Module) -> nn.Module:
    nn.utils.parametrizations.weight_norm(model.head)
    nn.utils.parametrizations.spectral_norm(model.blocks[1].attn.out)
    return model


WRAPPINGS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": DistributedDataParallel,
    "compile": torch.compile,
    "compiled blocks": compiled_blocks,
    "checkpoint": with_checkpoints,
    "fsdp2": sharded,
    "peft": adapted,
    "all": lambda model: torch.compile(
        DistributedDataParallel(with_checkpoints(compiled_blocks(model)))
    ),
    "compiled fsdp2 of checkpointed adapters": lambda model: torch.compile(
        fully_shard(adapted(with_checkpoints(model)))
    ),
    "parametrized": with_parametrization,
    "averaged": torch.optim.swa_utils.AveragedModel,
}


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("name", WRAPPINGS)
def test_wrapping_changes_no_name(name: str) -> None:
    plain_model = GPT(GPTConfig(depth=4))
    plain = anatomy_of(plain_model)
    model = WRAPPINGS[name](GPT(GPTConfig(depth=4)))
    found = anatomy_of(model)
    holds(model, found)

    def stripped(paths: Sequence[str | None]) -> tuple[str | None, ...]:
        return tuple(None if path is None else found.plain(path) for path in paths)

    assert stripped(found.embeddings) == plain.embeddings
    assert stripped([found.last_norm, found.head]) == (plain.last_norm, plain.head)
    for mine, theirs in zip(found.blocks, plain.blocks, strict=True):
        assert stripped([mine.path]) == (theirs.path,)
        for parts in ("attention", "ffn", "norms"):
            assert stripped(getattr(mine, parts)) == getattr(theirs, parts)
    groups = {plain.group_of(path) for path, _ in params(plain_model)}
    assert {found.group_of(path) for path, _ in params(model)} == groups
    shapes = [(one.num_heads, one.head_dim) for one in found.attention_parts]
    assert shapes == [(4, 24)] * 4


@pytest.mark.usefixtures("one_process")
def test_paths_are_those_of_the_wrapped_model() -> None:
    model = DistributedDataParallel(with_checkpoints(GPT(GPTConfig())))
    found = anatomy_of(model)
    assert found.embeddings == ("module.embed",)
    assert found.blocks[0].path == "module.blocks.0"  # the wrapper, once a forward
    assert found.blocks[0].attention == ("module.blocks.0._checkpoint_wrapped_module.attn",)
    assert found.blocks[1].attention == ("module.blocks.1.attn",)
    inner = "module.blocks.0._checkpoint_wrapped_module.attn.qkv.weight"
    assert (
        found.plain(inner) == found.plain("blocks.0.attn.qkv.weight") == "blocks.0.attn.qkv.weight"
    )
    assert found.plain("module") == found.plain("") == ""


@pytest.mark.usefixtures("one_process")
def test_a_sharded_block_is_like_one_that_is_not() -> None:
    model = GPT(GPTConfig(depth=2))
    fully_shard(model.blocks[0], mesh=init_device_mesh("cpu", (1,)))
    assert [one.path for one in anatomy_of(model).blocks] == ["blocks.0", "blocks.1"]


def test_a_module_of_the_users_own_called_module_stays() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = GPT(GPTConfig(depth=2))
            self.value = nn.Linear(96, 1)

    found = anatomy_of(Model())
    assert found.plain("module.embed.weight") == "module.embed.weight"
    assert found.embeddings == ("module.embed",)
    assert [one.path for one in found.blocks] == ["module.blocks.0", "module.blocks.1"]
