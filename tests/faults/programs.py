"""A small program that every fault of a program can change, trained in a plain loop."""

from typing import Any

import torch

from foreshock.core.program import Program
from foreshock.lab.gpt import GPT, GPTConfig
from foreshock.lab.programs import next_byte_loss

LR = 1e-2
WARMUP = 4


def small_program(**options: Any) -> Program:
    """A GPT of two blocks, always the same, with a schedule and without data."""
    generator = torch.Generator().manual_seed(0)
    config = GPTConfig(width=16, depth=2, heads=2, context=12)
    model = GPT(config, generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_share)
    parts: dict[str, Any] = {"loss": next_byte_loss, "clip": 1.0, "stream": None}
    return Program(model=model, optimizer=optimizer, scheduler=scheduler, **(parts | options))


def rate_share(step: int) -> float:
    """A warm-up, then a slow fall."""
    return min(1.0, (step + 1) / WARMUP) * 0.98**step


def batch_of(step: int) -> torch.Tensor:
    """`[4, 13]`, of this step."""
    return torch.randint(256, (4, 13), generator=torch.Generator().manual_seed(1000 + step))


def train(program: Program, steps: int, *, first: int = 0) -> list[float]:
    """The losses of so many steps; an update that is not finite is not made."""
    losses: list[float] = []
    program.model.train()
    for step in range(first, first + steps):
        program.optimizer.zero_grad()
        loss = program.loss(program.model, batch_of(step))
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in program.model.parameters()])
        if bool(norm.isfinite()):
            if program.clip is not None:
                torch.nn.utils.clip_grads_with_norm_(program.model.parameters(), program.clip, norm)
            program.optimizer.step()
            program.scheduler.step()
        losses.append(float(loss.detach()))
    return losses


def state_of(program: Program) -> list[torch.Tensor]:
    """Weights and moments."""
    moments = program.optimizer.state_dict()["state"]
    tensors = [*program.model.state_dict().values()]
    tensors += [moments[index][key] for index in sorted(moments) for key in moments[index]]
    return [tensor.clone() for tensor in tensors]
