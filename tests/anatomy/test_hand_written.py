"""Models written by hand: shapes decide, names where they leave it open."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from foreshock.anatomy import Anatomy, Block, anatomy_of
from foreshock.core.names import module_group
from foreshock.lab.gpt import GPT, GPTConfig
from tests.anatomy.architectures import RESNET
from tests.anatomy.expectations import block, block_paths, holds, params, torch_layer


class Fused(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.a = nn.Linear(width, 3 * width)
        self.b = nn.Linear(width, width)


class Gated(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, 40), nn.Linear(width, 40)
        self.c = nn.Linear(40, width)


class Nameless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = Fused(), Gated()
        self.u, self.v = nn.LayerNorm(16), nn.LayerNorm(16)


def test_shapes_tell_attention_from_ffn_where_names_say_nothing() -> None:
    found = anatomy_of(nn.Sequential(nn.Embedding(9, 16), Nameless(), Nameless(), nn.Linear(16, 9)))
    assert found.embeddings == ("0",)
    assert found.blocks == tuple(block(path, "x", "y", "u v") for path in ("1", "2"))
    assert found.head == "3"
    assert found.attention_parts[0].num_heads is None


class Flat(nn.Module):
    """All matrices of a block stand loose in it, and the norms are functions."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head = 4
        self.wq, self.wk, self.wv = (nn.Linear(16, out) for out in (16, 8, 8))
        self.wo = nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 48), nn.Linear(48, 16)
        self.ln = nn.LayerNorm(16)


def test_a_block_of_loose_matrices() -> None:
    model = nn.ModuleDict({"tok": nn.Embedding(9, 16), "h": nn.ModuleList([Flat(), Flat()])})
    found = anatomy_of(model)
    assert found.blocks[1] == block("h.1", "wq wk wv wo", "up down", "ln")
    assert found.group_of("h.1.wo.bias") == "h.1.attn"
    assert found.group_of("h.1.up.bias") == "h.1.ffn"
    part = found.attention_parts[1]
    assert (part.path, part.num_heads, part.num_key_value_heads, part.head_dim) == ("h.1", 4, 2, 4)
    holds(model, found)


def test_a_number_of_heads_that_cannot_be_is_not_told() -> None:
    model = Flat()
    model.n_kv_heads = 3
    part = anatomy_of(nn.ModuleList([model])).attention_parts[0]
    assert (part.num_heads, part.num_key_value_heads, part.head_dim) == (4, None, 4)


def test_a_layer_as_wide_as_there_are_positions_is_no_head() -> None:
    model = nn.ModuleDict(
        {
            "wte": nn.Embedding(9, 16),
            "wpe": nn.Embedding(24, 16),
            "h": nn.ModuleList(Nameless() for _ in range(2)),
            "out": nn.Linear(16, 9),
            "aux": nn.Linear(16, 24),
        }
    )
    assert anatomy_of(model).head == "out"


class Projections(nn.Module):
    """Attention whose projections are one bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim = 4, 4
        self.qkv_w = nn.Parameter(torch.zeros(3, 16, 16))
        self.c_proj = nn.Linear(16, 16)


class Speedy(nn.Module):
    """Norms are functions, and one block has no attention."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.attn = None if number == 1 else Projections()
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
        self.lambdas = nn.Parameter(torch.zeros(2))


def test_blocks_without_norms_and_one_without_attention() -> None:
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(9, 16),
            "value_embeds": nn.ModuleList(nn.Embedding(9, 16) for _ in range(2)),
            "blocks": nn.ModuleList(Speedy(number) for number in range(3)),
            "lm_head": nn.Linear(16, 12),  # a vocabulary that was padded
        }
    )
    found = anatomy_of(model)
    assert found.embeddings == ("embed", "value_embeds.0", "value_embeds.1")
    assert found.blocks == (
        block("blocks.0", "attn", "mlp", ""),
        block("blocks.1", "", "mlp", ""),
        block("blocks.2", "attn", "mlp", ""),
    )
    assert (found.last_norm, found.head) == (None, "lm_head")
    assert found.role_of("blocks.0.attn.qkv_w") == "attention"
    assert found.group_of("blocks.1.lambdas") == "blocks.1"
    holds(model, found)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class LlamaAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = 4, 2
        self.wq, self.wk, self.wv = (nn.Linear(32, out) for out in (32, 16, 16))
        self.wo = nn.Linear(32, 32)


class LlamaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = LlamaAttention()
        self.feed_forward = nn.ModuleDict(
            {"w1": nn.Linear(32, 48), "w2": nn.Linear(48, 32), "w3": nn.Linear(32, 48)}
        )
        self.attention_norm, self.ffn_norm = RMSNorm(32), RMSNorm(32)


def test_llama_written_by_hand() -> None:
    model = nn.ModuleDict(
        {
            "tok_embeddings": nn.Embedding(96, 32),
            "layers": nn.ModuleDict({str(number): LlamaBlock() for number in range(2)}),
            "norm": RMSNorm(32),
            "output": nn.Linear(32, 96, bias=False),
        }
    )
    found = anatomy_of(model)
    assert found.embeddings == ("tok_embeddings",)
    assert found.blocks[1] == block(
        "layers.1", "attention", "feed_forward", "attention_norm ffn_norm"
    )
    assert (found.last_norm, found.head) == ("norm", "output")
    part = found.attention_parts[0]
    assert (part.num_heads, part.num_key_value_heads, part.head_dim) == (4, 2, 8)
    holds(model, found)


class Mixed(nn.Module):
    """Attention made of a list of heads."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key, self.query, self.value = (nn.Linear(16, 4) for _ in range(3))
            self.norm = nn.LayerNorm(4)

    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList(Mixed.Head() for _ in range(4))
            self.proj = nn.Linear(16, 16)

    def __init__(self) -> None:
        super().__init__()
        self.sa = Mixed.Many()
        self.ffwd = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
        self.ln1, self.ln2 = nn.LayerNorm(16), nn.LayerNorm(16)


@pytest.mark.parametrize("depth", [1, 3])
def test_heads_in_a_list_are_no_blocks(depth: int) -> None:
    model = nn.Sequential(nn.Embedding(9, 16), nn.Sequential(*(Mixed() for _ in range(depth))))
    found = anatomy_of(model)
    expected = [block(f"1.{number}", "sa", "ffwd", "ln1 ln2") for number in range(depth)]
    assert list(found.blocks) == expected


class PreNorm(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(16), inner


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 8)
        self.many = nn.ModuleList(Gated() for _ in range(8))


@pytest.mark.parametrize("depth", [1, 2])
def test_parts_in_lists_and_shells_are_found_and_experts_are_no_blocks(depth: int) -> None:
    layers = [nn.ModuleList([PreNorm(Fused()), PreNorm(Sparse())]) for _ in range(depth)]
    model = nn.ModuleDict({"layers": nn.ModuleList(layers), "to_logits": nn.Linear(16, 9)})
    found = anatomy_of(model)
    expected = [
        block(f"layers.{number}", "0.fn", "1.fn", "0.norm 1.norm") for number in range(depth)
    ]
    assert list(found.blocks) == expected
    assert found.head == "to_logits"
    expert = found.group_of("layers.0.1.fn.many.5.a.weight")
    assert expert == found.group_of("layers.0.1.fn.gate.weight") == "layers.0.1.fn"
    holds(model, found)


def test_blocks_in_a_dict_and_blocks_that_are_numbered_attributes() -> None:
    by_number = nn.ModuleDict({str(number): Nameless() for number in range(3)})
    found = anatomy_of(nn.ModuleDict({"tok": nn.Embedding(9, 16), "layers": by_number}))
    assert [one.path for one in found.blocks] == block_paths("layers.0-2")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block1, self.block2 = Nameless(), Nameless()

    assert [one.path for one in anatomy_of(Model()).blocks] == ["block1", "block2"]


def test_blocks_of_two_classes_in_one_list() -> None:
    class Other(Nameless):
        pass

    model = nn.ModuleList([Nameless(), Nameless(), Other(), Nameless()])
    assert [one.path for one in anatomy_of(model).blocks] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("wrap", [lambda one: one, checkpoint_wrapper])
def test_a_block_used_several_times_counts_once(wrap: Callable[[nn.Module], nn.Module]) -> None:
    shared = Nameless()
    model = nn.ModuleDict(
        {"tok": nn.Embedding(9, 16), "layers": nn.ModuleList(wrap(shared) for _ in range(4))}
    )
    found = anatomy_of(model)
    assert [one.path for one in found.blocks] == ["layers.0"]
    assert len(found.attention_parts) == 1


def test_a_lone_block_and_a_model_that_is_one() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.only = nn.Embedding(9, 16), Nameless()
            self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 9)

    found = anatomy_of(Model())
    assert found.blocks == (block("only", "x", "y", "u v"),)
    assert (found.last_norm, found.head) == ("norm", "head")

    model = torch_layer()
    found = anatomy_of(model)
    assert found.blocks == (
        Block(
            path="",
            attention=("self_attn",),
            ffn=("linear1", "linear2"),
            norms=("norm1", "norm2"),
        ),
    )
    assert found.group_of("linear1.weight") == "ffn"
    holds(model, found)


def test_two_models_in_one() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.members = nn.ModuleList(GPT(GPTConfig(depth=2)) for _ in range(2))

    found = anatomy_of(Pair())
    stems = ("members.0.blocks.0-1", "members.1.blocks.0-1")
    assert [one.path for one in found.blocks] == [p for stem in stems for p in block_paths(stem)]
    assert found.embeddings == ("members.0.embed", "members.1.embed")


class Residual(nn.Module):
    """A ResNet's basic block."""

    def __init__(self, width: int, *, down: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3), nn.BatchNorm2d(width)
        if down:
            self.downsample = nn.Sequential(nn.Conv2d(width, width, 1), nn.BatchNorm2d(width))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7), nn.BatchNorm2d(8)
        for number in range(1, 5):
            stage = nn.Sequential(Residual(8, down=number > 1), Residual(8, down=False))
            setattr(self, f"layer{number}", stage)
        self.fc = nn.Linear(8, 8)


def test_a_convolutional_network_has_blocks_without_attention() -> None:
    model = ResNet()
    found = anatomy_of(model)
    assert [one.path for one in found.blocks] == [
        f"layer{stage}.{number}" for stage in range(1, 5) for number in range(2)
    ]
    assert found.blocks[2] == block("layer2.0", "", "", "bn1 bn2 downsample.1")
    assert (found.embeddings, found.attention_parts) == ((), ())
    assert (found.last_norm, found.head) == ("layer4.1.bn2", "fc")
    assert found.group_of("layer4.1.conv1.weight") == "layer4.1.conv1"
    holds(model, found)

    model = hf.ResNetForImageClassification(hf.ResNetConfig(**RESNET))
    found = anatomy_of(model)
    stages = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert [one.path for one in found.blocks] == [
        f"resnet.encoder.stages.{stage}.layers.{number}" for stage, number in stages
    ]
    assert found.head == "classifier.1"


def test_models_without_blocks() -> None:
    mlp = anatomy_of(
        nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 5))
    )
    assert (mlp.blocks, mlp.embeddings, mlp.last_norm, mlp.head) == ((), (), None, "3")
    assert (mlp.group_of("2.weight"), mlp.role_of("2.weight")) == ("2", "other")
    assert mlp.role_of("3.weight") == "head"
    single = anatomy_of(nn.Linear(2, 2))
    assert (single.head, single.group_of("weight")) == (None, "weight")
    assert anatomy_of(nn.Identity()) == Anatomy(_blocks=frozenset())
    assert anatomy_of(nn.MultiheadAttention(16, 4)).head is None


def test_residual_mlps_are_blocks_with_an_ffn_only() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(16, 64), nn.Linear(64, 16)

    model = nn.Sequential(nn.Linear(3, 16), Layer(), Layer(), nn.Linear(16, 3))
    found = anatomy_of(model)
    assert found.blocks == (block("1", "", "fc1 fc2", ""), block("2", "", "fc1 fc2", ""))
    assert found.head == "3"
    holds(model, found)


def test_parameters_that_belong_to_no_part_and_paths_that_are_not_the_models() -> None:
    class Model(GPT):
        def __init__(self) -> None:
            super().__init__(GPTConfig(depth=2))
            self.temperature = nn.Parameter(torch.ones(()))
            self.blocks[0].gain = nn.Parameter(torch.ones(()))
            self.blocks[0].attn.sink = nn.Parameter(torch.ones(4))
            self.value = nn.Sequential(nn.Linear(96, 96), nn.Linear(96, 96))

    model = Model()
    found = anatomy_of(model)
    assert (found.group_of("temperature"), found.role_of("temperature")) == ("temperature", "other")
    assert (found.group_of("blocks.0.gain"), found.role_of("blocks.0.gain")) == (
        "blocks.0",
        "other",
    )
    assert found.group_of("blocks.0.attn.sink") == "blocks.0.attn"
    assert (found.group_of("value.1.weight"), found.role_of("value.1.weight")) == (
        "value.1",
        "other",
    )
    assert found.group_of("no.such.9.path") == module_group("no.such.9.path")
    assert found.role_of("no.such.9.path") == "other"
    assert found.head == "head"  # behind it comes a layer that is no vocabulary
    holds(model, found)


def test_many_blocks_and_deep_nesting() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(Nameless() for _ in range(300)))
    found = anatomy_of(model)
    assert [one.path for one in found.blocks] == block_paths("0-299")
    assert found.blocks[299] == block("299", "x", "y", "u v")
    deep: nn.Module = GPT(GPTConfig(depth=2))
    for _ in range(400):
        deep = nn.Sequential(nn.Sequential(deep), nn.ReLU())
    found = anatomy_of(deep)
    assert len(found.blocks) == 2
    assert found.blocks[0].attention == (f"{'0.0.' * 400}blocks.0.attn",)


def test_a_tied_weight_that_is_listed_as_the_heads_belongs_to_the_embedding() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unembed = nn.Linear(16, 16)  # a square one: only the tie tells
            self.embed = nn.Embedding(16, 16)
            self.embed.weight = self.unembed.weight
            self.layers = nn.ModuleList(torch_layer() for _ in range(2))

    model = Model()
    assert params(model)[0][0] == "unembed.weight"
    found = anatomy_of(model)
    assert found.head == "unembed"
    assert (found.group_of("unembed.weight"), found.role_of("unembed.weight")) == (
        "embed",
        "embedding",
    )
    assert found.role_of("unembed.bias") == "head"


def test_attributes_that_compute_are_left_alone() -> None:
    class Touchy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def __getattribute__(self, name: str) -> Any:
            if name in ("num_heads", "in_features", "config", "num_embeddings"):
                raise RuntimeError(name)
            return super().__getattribute__(name)

    assert anatomy_of(nn.Sequential(Touchy(), Touchy())).blocks == ()


def test_uninitialised_parameters_are_no_obstacle() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(4))
    assert anatomy_of(model).blocks == ()
