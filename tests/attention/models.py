"""Small attention modules and a slow reference for what is measured of them."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from foreshock.attention.tap import AttentionTap

CPU = torch.device("cpu")


def reference_logits(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """All masked logits in fp64, `[B, H, T_q, T_k]`."""
    q, k = query.detach().double(), key.detach().double()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    logits = torch.einsum("bhid,bhjd->bhij", q, k) * factor
    if causal:
        seen = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
        logits = logits.masked_fill(~seen, -math.inf)
    if mask is not None and mask.dtype == torch.bool:
        logits = logits.masked_fill(~mask, -math.inf)
    elif mask is not None:
        logits = logits + mask.double()
    return logits


def rounding(query: Tensor, key: Tensor, scale: float | None = None) -> float:
    """How far the log-sum-exp of these may be off: fp32 sums of D products, and a logarithm.

    For 16-bit inputs the CPU kernel takes an exponential that is off by 1e-4.
    """
    q, k = query.detach().double(), key.detach().double()
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else abs(scale)
    size = q.norm(dim=-1).max() * k.norm(dim=-1).max() * factor
    return float((4e-6 if query.element_size() > 2 else 2e-4) + 4e-6 * size)


class Fused(nn.Module):
    """`scaled_dot_product_attention` on projections of the input."""

    def __init__(self, width: int = 16, heads: int = 2, **options: Any) -> None:
        super().__init__()
        self.num_heads, self.options = heads, options
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.num_heads, width // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, **self.options)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attend(*self.project(x)).transpose(1, 2).reshape(x.shape))


class ByHand(Fused):
    """The same by hand: causal softmax of products."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        return scores.masked_fill(~seen, -math.inf).softmax(dim=-1) @ v


class Einsum(Fused):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, -1), v)


class Merged(Fused):
    """Batch and heads in one dimension, baddbmm."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shape = q.shape
        q, k, v = (one.flatten(0, 1) for one in (q, k, v))
        bias = torch.zeros(1, 1, 1)
        scores = torch.baddbmm(bias, q, k.mT, beta=1.0, alpha=shape[-1] ** -0.5)
        weights = torch.nn.functional.softmax(scores, dim=2)
        return torch.bmm(weights, v).view(shape)


class Net(nn.Module):
    """Blocks of attention and a feed-forward layer over tokens."""

    def __init__(self, attention: Callable[[], nn.Module], depth: int = 2, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.attention = nn.ModuleList(attention() for _ in range(depth))
        self.ffn = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 32)
        self.around: Callable[[nn.Module, Tensor], Tensor] = lambda block, x: block(x)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for attention, ffn in zip(self.attention, self.ffn, strict=True):
            x = x + self.around(attention, x)
            x = x + ffn(x).tanh()
        return self.head(x)

    def attentions(self) -> list[tuple[str, nn.Module]]:
        return [(f"attention.{i}", one) for i, one in enumerate(self.attention)]


def weights_after(
    build: Callable[[], Net],
    *,
    watched: bool,
    steps: int = 20,
    exact: bool = False,
    prepare: Callable[[Net], nn.Module] = lambda net: net,
    micro_steps: int = 1,
    seen: Callable[[AttentionTap], None] = lambda tap: None,
) -> Tensor:
    """All weights after some training steps, with or without a tap."""
    torch.manual_seed(0)
    net = build()
    tap = AttentionTap(net.attentions(), CPU, exact_rows=2) if watched else None
    model = prepare(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(steps):
        if tap is not None:
            tap.want_exact = exact
        for micro_step in range(micro_steps):
            generator = torch.Generator().manual_seed(100 * step + micro_step)
            tokens = torch.randint(0, 32, (2, 9), generator=generator)
            cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if tap is not None:
            seen(tap)
            tap.read_and_reset()
            tap.read_exact()
    if tap is not None:
        tap.close()
    return torch.cat([one.detach().flatten() for one in net.parameters()])
