"""A stand-in of torchtitan's Trainer: its parts and the order in which it calls them.

Written from torchtitan's `trainer.py` of August 2026 by what it does: `train` loads a checkpoint,
asks `batch_generator` for batches once, and goes on while `should_continue_training`; its own
step clips first, and stops where a loss or the norm is not finite.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.integrations import scenario


class DataloaderExhaustedError(Exception):
    pass


class Container(torch.optim.Optimizer):
    def __init__(self, optimizers):
        self.optimizers = optimizers
        super().__init__(
            [p for one in optimizers for g in one.param_groups for p in g["params"]], {}
        )

    def step(self, closure=None):
        assert closure is None
        for one in self.optimizers:
            one.step()

    def zero_grad(self, set_to_none=True):
        for one in self.optimizers:
            one.zero_grad(set_to_none=set_to_none)


class Schedules:
    def __init__(self, optimizers):
        self.schedulers = [
            torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1.0)
            for one in optimizers.optimizers
        ]

    def get_metrics(self):
        return {"lr": self.schedulers[0].get_last_lr()[0]}

    def step(self):
        for one in self.schedulers:
            one.step()

    def state_dict(self):
        return {"last_epoch": self.schedulers[0].last_epoch}

    def load_state_dict(self, state):
        for one in self.schedulers:
            one.last_epoch = state["last_epoch"]
            one._last_lr = [group["lr"] for group in one.optimizer.param_groups]


class Metrics:
    def __init__(self):
        self.ntokens_since_last_log, self.data_loading_times, self.logged = 0, [], []

    def should_log(self, step):
        return step == 1 or step % 10 == 0

    def log(self, step, avg_loss, max_loss, grad_norm, extra_metrics=None):
        self.logged.append((step, avg_loss, max_loss, grad_norm, extra_metrics))


class Checkpointer:
    def __init__(self):
        self.saved, self.waited = [], 0

    def load(self, step):
        return False

    def maybe_wait_for_staging(self):
        self.waited += 1

    def save(self, step, last_step=False):
        self.saved.append((step, last_step))


def collate(rows):
    batch = torch.utils.data.default_collate(rows)
    return {"input": batch["input_ids"]}, batch["labels"]


class Trainer:
    def __init__(self, rows, *, steps=scenario.STEPS, accumulate=1, dropout=0.0, wrap=lambda m: m):
        self.config = SimpleNamespace(
            training=SimpleNamespace(steps=steps, max_norm=scenario.CLIP, disable_cuda_graphs=True),
            checkpoint=SimpleNamespace(load_step=-1),
        )
        self.device = torch.device("cpu")
        self.model_parts = [wrap(scenario.model(dropout))]
        optimizer = torch.optim.AdamW(self.model_parts[0].parameters(), lr=scenario.LR)
        self.optimizers = Container([optimizer])
        self.lr_schedulers = Schedules(self.optimizers)
        self.metrics_processor, self.checkpointer = Metrics(), Checkpointer()
        self.parallel_dims = SimpleNamespace(dp_enabled=dist.get_world_size() > 1)
        self.gradient_accumulation_steps = accumulate
        self.step, self.ntokens_seen = 0, 0
        world, rank = dist.get_world_size(), dist.get_rank()
        size = scenario.BATCH // accumulate // world
        batches = [rows[start : start + size] for start in range(0, len(rows) - size + 1, size)]
        self.dataloader = StatefulDataLoader(
            scenario.Rows(), batch_sampler=batches[rank::world], collate_fn=collate
        )

    def batch_generator(self, iterable):
        iterator = iter(iterable)
        while True:
            try:
                inputs, labels = next(iterator)
            except StopIteration as end:
                raise DataloaderExhaustedError from end
            self.metrics_processor.ntokens_since_last_log += labels.numel()
            yield inputs, labels

    def forward_backward_step(self, *, input_dict, labels, global_valid_tokens):
        self.ntokens_seen += labels.numel()
        mean = self.model_parts[0](input_ids=input_dict["input"], labels=labels)["loss"]
        loss = mean * (labels.numel() / global_valid_tokens)
        loss.backward()
        return loss

    def train_step(self, batches):
        self.optimizers.zero_grad()
        taken = [next(batches) for _ in range(self.gradient_accumulation_steps)]
        num = torch.stack([(labels != -100).sum() for _, labels in taken]).sum()
        if self.parallel_dims.dp_enabled:
            dist.all_reduce(num)
        total = torch.zeros(())
        for inputs, labels in taken:
            total += self.forward_backward_step(
                input_dict=inputs, labels=labels, global_valid_tokens=num
            ).detach()
        parameters = self.model_parts[0].parameters()
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.config.training.max_norm)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        torch._assert_async(torch.isfinite(total) & torch.isfinite(norm), "not finite")
        self.checkpointer.maybe_wait_for_staging()
        self.optimizers.step()
        self.lr_schedulers.step()
        if self.metrics_processor.should_log(self.step):
            extra = {"n_tokens_seen": self.ntokens_seen, **self.lr_schedulers.get_metrics()}
            self.metrics_processor.log(self.step, float(total), float(total), float(norm), extra)

    def should_continue_training(self):
        return self.step < self.config.training.steps

    def train(self):
        self.checkpointer.load(step=self.config.checkpoint.load_step)
        batches = self.batch_generator(self.dataloader)
        while self.should_continue_training():
            self.step += 1
            try:
                self.train_step(batches)
            except DataloaderExhaustedError:
                break
            self.checkpointer.save(self.step, last_step=self.step == self.config.training.steps)
