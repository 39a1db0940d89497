"""The reference model: a small pre-norm GPT over bytes, plain enough to read in one go."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from foreshock.core.errors import ConfigError

INIT_STD = 0.02  # GPT (Radford et al., 2018), section 4.1, without depth scaling.
ROPE_BASE = 10_000.0  # RoFormer (Su et al., 2021), section 3.2.2.


@final
@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """Shape of a `GPT`. `width` is D, `heads` is H, `context` the longest T."""

    vocab: int = 256
    width: int = 96
    depth: int = 3
    heads: int = 4
    context: int = 128
    dropout: float = 0.0
    qk_norm: bool = False

    def __post_init__(self) -> None:
        if min(self.vocab, self.width, self.depth, self.heads, self.context) < 1:
            raise ConfigError(f"every size in {self} must be >= 1.")
        if self.width % (2 * self.heads):
            pairs = "RoPE rotates pairs: width must be a multiple of 2 * heads"
            raise ConfigError(f"width={self.width}, heads={self.heads}: {pairs}.")
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout={self.dropout}; it must be in [0, 1).")


def rope_tables(context: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position * frequency, each `[context, head_dim / 2]`, float32."""
    frequency = ROPE_BASE ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(context, dtype=torch.float32), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x_i, x_{i + d/2}) of `x` `[B, H, T, d]` by the angles `[T, d / 2]`."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


@final
class Attention(nn.Module):
    """Causal multi-head self-attention with rotary positions, `[B, T, D] -> [B, T, D]`."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        head_dim = config.width // config.heads
        self.heads, self.dropout = config.heads, config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.q_norm = nn.RMSNorm(head_dim) if config.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(head_dim) if config.qk_norm else nn.Identity()
        cos, sin = rope_tables(config.context, head_dim)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [B, H, T, D / H]
        cos, sin = self.cos[:length], self.sin[:length]
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        dropout = self.dropout if self.training else 0.0
        y = scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


@final
class FeedForward(nn.Module):
    """Two matrices with a GELU between them, four times as wide inside, `[B, T, D]`."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width, bias=False)
        self.down = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gelu(self.up(x)))


@final
class Block(nn.Module):
    """`x + attn(norm(x))`, then `x + ffn(norm(x))`, `[B, T, D]`."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attn_norm, self.attn = nn.LayerNorm(config.width), Attention(config)
        self.ffn_norm, self.ffn = nn.LayerNorm(config.width), FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attn(self.attn_norm(x)))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


@final
class GPT(nn.Module):
    """Next-token logits: `tokens [B, T]` int64 -> `[B, T, V]`; embedding and head are untied.

    Every matrix is drawn from N(0, 0.02) with `generator`, or with torch's global one if it is
    None. The drawing happens on the CPU, so a seed means the same weights on every device.
    """

    def __init__(self, config: GPTConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        for matrix in (parameter for parameter in self.parameters() if parameter.ndim >= 2):
            nn.init.normal_(matrix, std=INIT_STD, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.shape[1] > (context := self.config.context):
            raise ConfigError(f"GPT got {tokens.shape[1]} tokens a row; its context is {context}.")
        x = self.embed(tokens)  # [B, T, D]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
