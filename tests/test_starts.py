"""What a process starts with, as it is collected and recorded."""

import json
from pathlib import Path

import torch

import foreshock
from foreshock.core.starts import STARTED, History, changes_between, history_of
from foreshock.starts import start_of
from tests.guard.programs import guarded, make, take_step

SECRETS = {"NCCL_TOKEN": "x", "TORCH_API_KEY": "x", "CUDA_PASSWORD": "x", "HOME": "x"}
OF_THE_START = {"TORCHELASTIC_RUN_ID": "7", "NCCL_PORT_RANGE": "1", "OMP_RANK": "0"}
KEPT = {"NCCL_ALGO": "Ring", "NVTE_FLASH_ATTN": "0", "OMP_NUM_THREADS": "1"}


def model_and(**options: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 4)
    return model, torch.optim.AdamW(model.parameters(), **options)  # type: ignore[arg-type]


def test_only_variables_that_choose_numbers_are_told_and_no_secret() -> None:
    found = start_of(*model_and(), environment={**SECRETS, **OF_THE_START, **KEPT})
    assert found["environment"] == KEPT


def test_an_edited_setting_is_a_change_and_nothing_else_is() -> None:
    one, other = start_of(*model_and(weight_decay=0.1)), start_of(*model_and(weight_decay=0.2))
    found = changes_between(one, other, 3)
    assert [(c.kind, c.name, c.before, c.after) for c in found] == [
        ("configuration", "group 0 weight_decay", "0.1", "0.2")
    ]
    assert start_of(*model_and()) == start_of(*model_and())


def test_a_rate_that_a_schedule_moves_is_told_as_it_began() -> None:
    def rate(steps: int) -> str:
        model, optimizer = model_and(lr=0.5)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(steps):
            optimizer.step()
            schedule.step()
        return start_of(model, optimizer, scheduler=schedule)["configuration"]["group 0 lr"]

    assert rate(0) == rate(3) == "0.5"


def test_everything_is_text_of_bounded_length() -> None:
    found = start_of(*model_and(), facts={"note": "x" * 10_000, "precision": "bf16"})
    assert json.loads(json.dumps(found)) == found
    assert found["configuration"]["precision"] == "bf16"
    assert all(len(text) <= 160 for told in found.values() for text in told.values())


def started(run_dir: Path, max_steps: int, weight_decay: float) -> History:
    """Train up to a step, in a process that was set up with this weight decay."""
    training = make()
    training.optimizer.param_groups[0]["weight_decay"] = weight_decay
    with guarded(training, run_dir, max_steps=max_steps, resume=run_dir.exists()) as guard:
        for batch in guard:
            take_step(training, guard, batch)
        return history_of(guard.records)


def test_every_start_of_a_run_is_recorded_and_a_difference_is_found(tmp_path: Path) -> None:
    assert started(tmp_path / "run", 6, 0.01).starts == (0,)
    same = started(tmp_path / "run", 9, 0.01)
    assert (same.starts, same.changes) == ((0,), ())
    other = started(tmp_path / "run", 12, 0.03)
    assert other.starts == (0, 9)
    assert [(one.step, one.name, one.after) for one in other.changes] == [
        (9, "group 0 weight_decay", "0.03")
    ]


def test_watching_records_its_start_too(tmp_path: Path) -> None:
    training = make()
    with foreshock.watch(training.model, training.optimizer, run_dir=tmp_path / "run"):
        pass
    lines = (tmp_path / "run" / "decisions.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds.count(STARTED) == 1
