"""A forward may break a buffer though its update is skipped: such a state is not healthy."""

import pytest
import torch

import foreshock
from tests.guard.programs import recipe


@pytest.mark.parametrize("broken", [False, True])
def test_a_buffer_that_a_skipped_step_has_broken_is_a_concern(tmp_path, broken):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)
    )
    model.register_buffer("mask", torch.full((4,), -torch.inf))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stream = foreshock.Stream(torch.randn(4000, 8), batch_size=8, seed=0)
    with foreshock.Guard(
        model, optimizer, stream, run_dir=tmp_path / "run", recipe=recipe(), max_steps=30
    ) as guard:
        for batch in guard:
            if broken and guard.step_number == 14:
                batch[0, 0] = torch.nan
            guard.step(model(batch).square().mean())
    assert torch.isnan(model[1].running_mean).any() == broken
    labels = [one["snapshot"] for one in guard.records if one["kind"] == "snapshot"]
    last = max(labels, key=lambda one: one["step"])
    said = "; ".join(last["health"]["concerns"])
    assert ("or a buffer a NaN" in said) == broken
