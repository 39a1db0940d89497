"""A stand-in of Megatron-LM: its arguments, checkpoints, optimizer and training loop.

Written from Megatron-LM's `training.py` and `core/optimizer/optimizer.py` of August 2026 by what
they do: an iteration to skip consumes its batch and counts; `step` returns (False, None, None)
where `prepare_grads` says so, and the schedule then holds; a checkpoint's number stands in the
tracker file; `--ckpt-step` chooses another.
"""

import argparse
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

from tests.integrations import scenario


def arguments(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("--save")
    parser.add_argument("--load")
    parser.add_argument("--ckpt-step", type=int)
    parser.add_argument("--save-interval", type=int, default=20)
    parser.add_argument("--train-iters", type=int, default=scenario.STEPS)
    parser.add_argument("--iterations-to-skip", type=int, nargs="+", default=[])
    return parser.parse_args(words)


class MegatronOptimizer:
    def __init__(self, optimizer, clip_grad):
        self.optimizer = optimizer
        self.config = SimpleNamespace(clip_grad=clip_grad)
        self.grad_scaler = None

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def _parameters(self):
        return [one for group in self.param_groups for one in group["params"]]

    def zero_grad(self):
        self.optimizer.zero_grad()
        for one in self._parameters():
            one.main_grad = torch.zeros_like(one)

    def prepare_grads(self):
        for one in self._parameters():
            one.grad = one.main_grad
        return False

    def get_grad_norm(self):
        return float(torch.nn.utils.get_total_norm([one.grad for one in self._parameters()]))

    def step(self):
        if self.prepare_grads():
            return False, None, None
        norm = self.get_grad_norm()
        torch.nn.utils.clip_grads_with_norm_(
            self._parameters(), self.config.clip_grad, torch.tensor(norm)
        )
        self.optimizer.step()
        return True, norm, None


class Schedule:
    def __init__(self):
        self.num_steps = 0

    def step(self, increment):
        self.num_steps += increment


def rank_and_world():
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


class Megatron:
    def __init__(self, words, order):
        self.args = arguments(words)
        self.model = scenario.model()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=scenario.LR)
        self.optimizer = MegatronOptimizer(optimizer, scenario.CLIP)
        self.schedule = Schedule()
        self.order, self.rows = order, scenario.Rows()
        self.iteration, self.skipped, self.trained = 0, 0, []
        self._load()
        self.loaded = self.iteration

    def _load(self):
        tracker = Path(self.args.load or "", "latest_checkpointed_iteration.txt")
        if self.args.load is None or not tracker.exists():
            return
        iteration = self.args.ckpt_step or int(tracker.read_text())
        state = torch.load(Path(self.args.load, f"iter_{iteration:07d}", "state.pt"))
        self.model.load_state_dict(state["model"])
        self.optimizer.optimizer.load_state_dict(state["optimizer"])
        self.iteration = state["iteration"]

    def _save(self):
        if rank_and_world()[0] == 0:
            folder = Path(self.args.save, f"iter_{self.iteration:07d}")
            folder.mkdir(parents=True, exist_ok=True)
            state = {"model": self.model.state_dict(), "iteration": self.iteration}
            state["optimizer"] = self.optimizer.optimizer.state_dict()
            torch.save(state, folder / "state.pt")
            Path(self.args.save, "latest_checkpointed_iteration.txt").write_text(
                str(self.iteration)
            )

    def forward_step(self, batch, model):
        labels = batch["labels"]

        def loss_func(output):
            num = torch.tensor(labels[:, 1:].numel())
            total = output * num
            return total, num, {"lm loss": torch.stack([total.detach(), num.float()])}

        return model(**batch)["loss"], loss_func

    def train_step(self, forward_step, batch):
        self.optimizer.zero_grad()
        output, loss_func = forward_step(batch, self.model)
        total, num, _ = loss_func(output)
        (total / num).backward()
        for one in self.model.parameters():
            one.main_grad = one.grad
            one.grad = None
            if dist.is_initialized():
                dist.all_reduce(one.main_grad)
                one.main_grad /= dist.get_world_size()
        return self.optimizer.step()[0]

    def train(self, forward_step=None):
        args, (rank, world) = self.args, rank_and_world()
        share = scenario.BATCH // world
        while self.iteration < args.train_iters:
            start = self.iteration * scenario.BATCH + rank * share
            if self.iteration + 1 in args.iterations_to_skip:
                self.iteration += 1
                continue
            args.curr_iteration = self.iteration
            rows = [self.rows[row] for row in self.order[start : start + share]]
            batch = torch.utils.data.default_collate(rows)
            if self.train_step(forward_step or self.forward_step, batch):
                self.schedule.step(increment=scenario.BATCH)
                self.trained.append(self.iteration + 1)
            else:
                self.skipped += 1
            self.iteration += 1
            if args.save and self.iteration % args.save_interval == 0:
                self._save()
