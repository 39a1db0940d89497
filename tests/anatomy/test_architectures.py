"""The parts that are found are those that a person would name."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

from foreshock.anatomy import anatomy_of
from foreshock.core.names import module_group
from tests.anatomy.architectures import (
    BART,
    CASES,
    GROUPED,
    HF,
    HYBRID,
    OPT_NORMS,
    SWIN,
    T5,
)
from tests.anatomy.expectations import block, block_paths, holds, params


@pytest.mark.parametrize("name", CASES)
def test_parts_are_those_that_a_person_would_name(name: str) -> None:
    make, (embeddings, blocks, last_norm, head), parts = CASES[name]
    model = make()
    found = anatomy_of(model)
    assert found.embeddings == tuple(embeddings.split())
    assert found.blocks == tuple(block(path, *parts) for path in block_paths(blocks))
    assert (found.last_norm, found.head) == (last_norm, head)
    holds(model, found)


def test_an_encoder_and_a_decoder_are_two_stacks() -> None:
    model = hf.T5ForConditionalGeneration(hf.T5Config(**T5))
    found = anatomy_of(model)
    assert found.embeddings == ("shared", "encoder.embed_tokens", "decoder.embed_tokens")
    assert (found.last_norm, found.head) == ("decoder.final_layer_norm", "lm_head")
    encoder = ("layer.0.SelfAttention", "layer.1.DenseReluDense")
    decoder = ("layer.0.SelfAttention layer.1.EncDecAttention", "layer.2.DenseReluDense")
    norms = "layer.0.layer_norm layer.1.layer_norm"
    assert found.blocks == (
        block("encoder.block.0", *encoder, norms),
        block("encoder.block.1", *encoder, norms),
        block("decoder.block.0", *decoder, f"{norms} layer.2.layer_norm"),
        block("decoder.block.1", *decoder, f"{norms} layer.2.layer_norm"),
    )
    bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    assert found.role_of(bias) == "attention"
    assert found.group_of(bias) == "encoder.block.0.layer.0.SelfAttention"
    holds(model, found)


def test_stacks_of_different_classes_and_an_encoder_of_one_block() -> None:
    model = hf.BartForConditionalGeneration(hf.BartConfig(**BART))
    found = anatomy_of(model)
    norms = "self_attn_layer_norm encoder_attn_layer_norm final_layer_norm"
    assert found.blocks == (
        block("model.encoder.layers.0", "self_attn", "fc1 fc2", OPT_NORMS),
        *(
            block(path, "self_attn encoder_attn", "fc1 fc2", norms)
            for path in block_paths("model.decoder.layers.0-2")
        ),
    )
    # The norms behind the blocks in its listing are the embeddings'.
    assert found.last_norm == "model.decoder.layers.2.final_layer_norm"
    holds(model, found)


def test_stages_are_looked_through() -> None:
    model = hf.SwinForImageClassification(hf.SwinConfig(**SWIN))
    found = anatomy_of(model)
    assert [block.path for block in found.blocks] == [
        "swin.encoder.layers.0.blocks.0",
        "swin.encoder.layers.0.blocks.1",
        "swin.encoder.layers.1.blocks.0",
    ]
    assert (found.last_norm, found.head) == ("swin.layernorm", "classifier")
    assert found.role_of("swin.embeddings.patch_embeddings.projection.weight") == "embedding"
    holds(model, found)


def test_blocks_of_attention_and_of_state_space_models_in_turn() -> None:
    every_second = {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}
    config = hf.JambaConfig(**GROUPED | {"num_hidden_layers": 4}, num_experts=4, **every_second)
    model = hf.JambaForCausalLM(config)
    found = anatomy_of(model)
    norms = "input_layernorm pre_ff_layernorm"
    assert found.blocks == tuple(
        block(path, "self_attn" if number % 2 else "", "feed_forward", norms)
        for number, path in enumerate(block_paths("model.layers.0-3"))
    )
    assert found.role_of("model.layers.0.mamba.in_proj.weight") == "other"
    holds(model, found)


def test_as_wide_as_there_are_positions_is_no_head() -> None:
    sizes = HF | {"max_position_embeddings": 32, "embedding_size": 16}
    model = hf.ElectraForPreTraining(hf.ElectraConfig(**sizes))
    assert anatomy_of(model).head is None  # one value a token: real or replaced


def test_a_pooler_as_wide_as_the_vocabulary_is_no_head() -> None:
    assert anatomy_of(hf.BertModel(hf.BertConfig(**HF | {"vocab_size": 32}))).head is None


def test_linear_attention_has_no_heads_to_tell() -> None:
    model = hf.Qwen3NextForCausalLM(hf.Qwen3NextConfig(**HYBRID))
    found = anatomy_of(model)
    names = [one.path.rpartition(".")[2] for one in found.attention_parts]
    assert names == ["linear_attn"] * 3 + ["self_attn"]
    assert [one.num_heads for one in found.attention_parts] == [None, None, None, 4]
    holds(model, found)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("llama", (4, 2, 8)),
        ("gpt2", (4, 4, 8)),
        ("qwen3 (norms of q and k)", (4, 2, 16)),
        ("gpt-neox", (4, 4, 8)),
        ("opt (last norm in front of the blocks)", (4, 4, 8)),
        ("bert", (4, 4, 8)),
        ("mixtral", (4, 2, 8)),
        ("deepseek v3 (latent attention)", (4, 4, 16)),
        ("phi3 (fused projections)", (4, 2, 8)),
        ("vit", (4, 4, 8)),
        ("our reference", (4, 4, 24)),
        ("torch's encoder", (4, 4, 4)),
    ],
)
def test_heads(name: str, shape: tuple[int, int, int]) -> None:
    parts = anatomy_of(CASES[name][0]()).attention_parts
    found = {(one.num_heads, one.num_key_value_heads, one.head_dim) for one in parts}
    assert found == {shape}


class ViT(nn.Module):
    """timm's VisionTransformer: the same modules under the same names."""

    class PatchEmbed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = nn.Conv2d(3, 24, 4, 4)
            self.norm = nn.Identity()

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads, self.head_dim = 3, 8
            self.qkv = nn.Linear(24, 72)
            self.q_norm, self.k_norm = nn.Identity(), nn.Identity()
            self.attn_drop = nn.Dropout()
            self.norm = nn.Identity()
            self.proj = nn.Linear(24, 24)

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.act, self.fc2 = nn.Linear(24, 96), nn.GELU(), nn.Linear(96, 24)

    class LayerScale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gamma = nn.Parameter(torch.ones(24))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.attn, self.ls1 = nn.LayerNorm(24), ViT.Attention(), ViT.LayerScale()
            self.norm2, self.mlp, self.ls2 = nn.LayerNorm(24), ViT.Mlp(), ViT.LayerScale()

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.num_classes = 10
        self.patch_embed = ViT.PatchEmbed()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 24))
        self.pos_embed = nn.Parameter(torch.zeros(1, 17, 24))
        self.norm_pre = nn.Identity()
        self.blocks = nn.Sequential(*(ViT.Block() for _ in range(depth)))
        self.norm = nn.LayerNorm(24)
        self.fc_norm = nn.Identity()
        self.head = nn.Linear(24, 10)


def test_vision_transformer() -> None:
    model = ViT()
    found = anatomy_of(model)
    assert found.embeddings == ("patch_embed",)
    assert found.blocks == tuple(
        block(path, "attn", "mlp", "norm1 norm2") for path in block_paths("blocks.0-1")
    )
    assert (found.last_norm, found.head) == ("norm", "head")
    places = {path: (found.group_of(path), found.role_of(path)) for path, _ in params(model)}
    assert places["pos_embed"] == ("pos_embed", "embedding")
    assert places["cls_token"] == ("cls_token", "embedding")
    assert places["patch_embed.proj.bias"] == ("patch_embed", "embedding")
    assert places["blocks.1.attn.qkv.weight"] == ("blocks.1.attn", "attention")
    assert places["blocks.1.ls1.gamma"] == ("blocks.1.ls1", "other")
    assert places["head.bias"] == ("head", "head")
    holds(model, found)


@pytest.mark.parametrize("name", ["our reference", "llama", "gpt2", "qwen2"])
def test_groups_of_the_usual_models_are_those_of_their_paths(name: str) -> None:
    model = CASES[name][0]()
    found = anatomy_of(model)
    for path, _ in params(model):
        assert found.group_of(path) == module_group(path)


def test_loose_matrices_are_joined() -> None:
    found = anatomy_of(CASES["opt (last norm in front of the blocks)"][0]())
    layer = "model.decoder.layers.1"
    assert found.group_of(f"{layer}.fc1.weight") == f"{layer}.ffn"
    assert found.group_of(f"{layer}.fc2.bias") == f"{layer}.ffn"
    assert found.group_of(f"{layer}.final_layer_norm.weight") == f"{layer}.final_layer_norm"


@pytest.mark.parametrize("name", ["llama tied", "gpt2"])
def test_a_tied_weight_belongs_to_the_embedding(name: str) -> None:
    found = anatomy_of(CASES[name][0]())
    assert found.head == "lm_head"
    assert found.role_of("lm_head.weight") == "embedding"
    assert found.group_of("lm_head.weight") == found.embeddings[0]


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "our reference"])
def test_nothing_is_executed_or_changed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CASES[name][0]()
    before = {path: (type(one), set(vars(one))) for path, one in model.named_modules()}
    state = torch.random.get_rng_state()

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was run")

    monkeypatch.setattr(nn.Module, "__call__", refuse)
    first, second = anatomy_of(model), anatomy_of(model)
    assert first == second
    after = {path: (type(one), set(vars(one))) for path, one in model.named_modules()}
    assert after == before
    assert torch.equal(torch.random.get_rng_state(), state)
