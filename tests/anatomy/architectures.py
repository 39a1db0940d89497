"""Architectures in their smallest sizes, and the parts that a person would name in them."""

from collections.abc import Callable

import transformers as hf
from torch import nn

from foreshock.lab.gpt import GPT, GPTConfig
from tests.anatomy.expectations import torch_layer

HF = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 48,
}
GROUPED = HF | {"num_key_value_heads": 2}
GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 48}
OPT = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_dim": 64,
    "max_position_embeddings": 48,
}
BART = {
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 48,
}
T5 = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
MOE = GROUPED | {"head_dim": 8, "num_experts": 4, "moe_intermediate_size": 16}
LATENT = HF | {
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "moe_intermediate_size": 16,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
HYBRID = MOE | {"num_hidden_layers": 4}
VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 7,
}
ALBERT = {
    "vocab_size": 96,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
SWIN = {"embed_dim": 24, "depths": [2, 1], "num_heads": [2, 4], "image_size": 32, "num_labels": 5}
RESNET = {"embedding_size": 8, "hidden_sizes": [16, 24], "depths": [2, 3], "num_labels": 5}

LLAMA_NORMS = "input_layernorm post_attention_layernorm"
GEMMA_NORMS = f"{LLAMA_NORMS} pre_feedforward_layernorm post_feedforward_layernorm"
OPT_NORMS = "self_attn_layer_norm final_layer_norm"

Expected = tuple[str, str, str | None, str | None]  # embeddings, blocks, last norm, head
CASES: dict[str, tuple[Callable[[], nn.Module], Expected, tuple[str, str, str]]] = {
    "llama": (
        lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)),
        ("model.embed_tokens", "model.layers.0-2", "model.norm", "lm_head"),
        ("self_attn", "mlp", LLAMA_NORMS),
    ),
    "llama tied": (
        lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, tie_word_embeddings=True)),
        ("model.embed_tokens", "model.layers.0-2", "model.norm", "lm_head"),
        ("self_attn", "mlp", LLAMA_NORMS),
    ),
    "llama without a head": (
        lambda: hf.LlamaModel(hf.LlamaConfig(**GROUPED)),
        ("embed_tokens", "layers.0-2", "norm", None),
        ("self_attn", "mlp", LLAMA_NORMS),
    ),
    "llama of one block": (
        lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED | {"num_hidden_layers": 1})),
        ("model.embed_tokens", "model.layers.0-0", "model.norm", "lm_head"),
        ("self_attn", "mlp", LLAMA_NORMS),
    ),
    "llama that classifies": (
        lambda: hf.LlamaForSequenceClassification(
            hf.LlamaConfig(**GROUPED, num_labels=5, pad_token_id=0)
        ),
        ("model.embed_tokens", "model.layers.0-2", "model.norm", "score"),
        ("self_attn", "mlp", LLAMA_NORMS),
    ),
    "gpt2": (
        lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)),
        ("transformer.wte transformer.wpe", "transformer.h.0-2", "transformer.ln_f", "lm_head"),
        ("attn", "mlp", "ln_1 ln_2"),
    ),
    "qwen2": (
        lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**GROUPED)),
        ("model.embed_tokens", "model.layers.0-2", "model.norm", "lm_head"),
        ("self_attn", "mlp", LLAMA_NORMS),
    ),
    "qwen3 (norms of q and k)": (
        lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED, head_dim=16)),
        ("model.embed_tokens", "model.layers.0-2", "model.norm", "lm_head"),
        ("self_attn", "mlp", LLAMA_NORMS),
    ),
    "olmo2 (norms of q and k as wide as the block)": (
        lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**HF)),
        ("model.embed_tokens", "model.layers.0-2", "model.norm", "lm_head"),
        ("self_attn", "mlp", "post_attention_layernorm post_feedforward_layernorm"),
    ),
    "gemma2": (
        lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**GROUPED, head_dim=16)),
        ("model.embed_tokens", "model.layers.0-2", "model.norm", "lm_head"),
        ("self_attn", "mlp", GEMMA_NORMS),
    ),
    "gemma3": (
        lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**GROUPED, head_dim=16)),
        ("model.embed_tokens", "model.layers.0-2", "model.norm", "lm_head"),
        ("self_attn", "mlp", GEMMA_NORMS),
    ),
    "gpt-neox": (
        lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**HF)),
        ("gpt_neox.embed_in", "gpt_neox.layers.0-2", "gpt_neox.final_layer_norm", "lm_head"),
        ("attention", "mlp", LLAMA_NORMS),
    ),
    "opt (last norm in front of the blocks)": (
        lambda: hf.OPTForCausalLM(hf.OPTConfig(**OPT)),
        (
            "model.decoder.embed_tokens model.decoder.embed_positions",
            "model.decoder.layers.0-2",
            "model.decoder.final_layer_norm",
            "lm_head",
        ),
        ("self_attn", "fc1 fc2", OPT_NORMS),
    ),
    "bert": (
        lambda: hf.BertForMaskedLM(hf.BertConfig(**HF)),
        (
            "bert.embeddings.word_embeddings bert.embeddings.position_embeddings "
            "bert.embeddings.token_type_embeddings",
            "bert.encoder.layer.0-2",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
        ),
        ("attention", "intermediate output", "attention.output.LayerNorm output.LayerNorm"),
    ),
    "bert that classifies (post-norm, nothing behind the blocks)": (
        lambda: hf.BertForSequenceClassification(hf.BertConfig(**HF, num_labels=5)),
        (
            "bert.embeddings.word_embeddings bert.embeddings.position_embeddings "
            "bert.embeddings.token_type_embeddings",
            "bert.encoder.layer.0-2",
            "bert.encoder.layer.2.output.LayerNorm",
            "classifier",
        ),
        ("attention", "intermediate output", "attention.output.LayerNorm output.LayerNorm"),
    ),
    "bert without a head (its pooler is none)": (
        lambda: hf.BertModel(hf.BertConfig(**HF)),
        (
            "embeddings.word_embeddings embeddings.position_embeddings "
            "embeddings.token_type_embeddings",
            "encoder.layer.0-2",
            "encoder.layer.2.output.LayerNorm",
            None,
        ),
        ("attention", "intermediate output", "attention.output.LayerNorm output.LayerNorm"),
    ),
    "albert (one block, used three times)": (
        lambda: hf.AlbertForMaskedLM(hf.AlbertConfig(**ALBERT)),
        (
            "albert.embeddings.word_embeddings albert.embeddings.position_embeddings "
            "albert.embeddings.token_type_embeddings",
            "albert.encoder.albert_layer_groups.0.albert_layers.0-0",
            "predictions.LayerNorm",
            "predictions.decoder",
        ),
        ("attention", "ffn ffn_output", "full_layer_layer_norm attention.LayerNorm"),
    ),
    "mixtral": (
        lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**GROUPED, num_local_experts=4)),
        ("model.embed_tokens", "model.layers.0-2", "model.norm", "lm_head"),
        ("self_attn", "mlp", LLAMA_NORMS),
    ),
    "qwen3 moe (first block dense)": (
        lambda: hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**MOE, mlp_only_layers=[0])),
        ("model.embed_tokens", "model.layers.0-2", "model.norm", "lm_head"),
        ("self_attn", "mlp", LLAMA_NORMS),
    ),
    "deepseek v3 (latent attention)": (
        lambda: hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**LATENT)),
        ("model.embed_tokens", "model.layers.0-2", "model.norm", "lm_head"),
        ("self_attn", "mlp", LLAMA_NORMS),
    ),
    "mamba (no attention, no FFN)": (
        lambda: hf.MambaForCausalLM(
            hf.MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=3)
        ),
        ("backbone.embeddings", "backbone.layers.0-2", "backbone.norm_f", "lm_head"),
        ("", "", "norm"),
    ),
    "phi3 (fused projections)": (
        lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**GROUPED, pad_token_id=0)),
        ("model.embed_tokens", "model.layers.0-2", "model.norm", "lm_head"),
        ("self_attn", "mlp", LLAMA_NORMS),
    ),
    "vit": (
        lambda: hf.ViTForImageClassification(hf.ViTConfig(**VIT)),
        ("vit.embeddings.patch_embeddings", "vit.layers.0-2", "vit.layernorm", "classifier"),
        ("attention", "mlp", "layernorm_before layernorm_after"),
    ),
    "our reference": (
        lambda: GPT(GPTConfig(qk_norm=True)),
        ("embed", "blocks.0-2", "norm", "head"),
        ("attn", "ffn", "attn_norm ffn_norm"),
    ),
    "our reference of one block": (
        lambda: GPT(GPTConfig(depth=1)),
        ("embed", "blocks.0-0", "norm", "head"),
        ("attn", "ffn", "attn_norm ffn_norm"),
    ),
    "torch's encoder": (
        lambda: nn.TransformerEncoder(torch_layer(), 3, enable_nested_tensor=False),
        ("", "layers.0-2", "layers.2.norm2", None),
        ("self_attn", "linear1 linear2", "norm1 norm2"),
    ),
    "torch's decoder": (
        lambda: nn.TransformerDecoder(
            nn.TransformerDecoderLayer(16, 4, 32), 2, norm=nn.LayerNorm(16)
        ),
        ("", "layers.0-1", "norm", None),
        ("self_attn multihead_attn", "linear1 linear2", "norm1 norm2 norm3"),
    ),
}
