from __future__ import annotations

import pytest
import torch

from stablernn.training.loop.trainer import build_optimizer, build_schedule
from stablernn.training.settings.config import TrainingConfig


def settings(**given: object) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {"lr": 0.1, "optimizer": "sgd", "weight_decay": 0.0, "schedule": "constant", **given}
    )


def rates(schedule: str, total: int, epoch: int = 1, **given: object) -> list[float]:
    chosen = settings(schedule=schedule, **given)
    optimizer = build_optimizer({"other": [torch.nn.Parameter(torch.zeros(1))], "orthogonal": []}, chosen)
    scheduler = build_schedule(optimizer, chosen, total_steps=total, epoch_steps=epoch)
    seen = []
    for _ in range(total):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "rmsprop", "adagrad"])
def test_equals_torch(name: str) -> None:
    given = {"momentum": 0.5} if name in ("sgd", "rmsprop") else {}
    classes = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": torch.optim.SGD,
        "rmsprop": torch.optim.RMSprop,
        "adagrad": torch.optim.Adagrad,
    }
    results = []
    for ours in (True, False):
        weight = torch.nn.Parameter(torch.tensor([[1.0, -2.0]]))
        optimizer = (
            build_optimizer(
                {"other": [weight], "orthogonal": []}, settings(optimizer=name, lr=0.05, weight_decay=0.1, **given)
            )
            if ours
            else classes[name]([weight], lr=0.05, weight_decay=0.1, **given)
        )
        for _ in range(5):
            optimizer.zero_grad()
            (weight**2).sum().backward()
            optimizer.step()
        results.append(weight.detach())
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_one_cycle_peaks_at_the_rate() -> None:
    got = rates("one-cycle", 100)
    assert max(got) == pytest.approx(0.1)
    assert got.index(max(got)) == 29
    assert got[0] == pytest.approx(0.1 / 25)
    assert got[-1] < 1e-5


def test_step_drops_after_epochs() -> None:
    got = rates("step", 12, epoch=3, step_epochs=2, lr_decay=0.5)
    assert got == pytest.approx([0.1] * 6 + [0.05] * 6)


def test_orthogonal_parameters_have_their_own_rate_and_no_decay() -> None:
    free, bias = torch.nn.Parameter(torch.zeros(1, 1)), torch.nn.Parameter(torch.zeros(1))
    skew, skip = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1, 1))
    chosen = settings(weight_decay=0.2, orthogonal_lr=0.003, skip_lr=0.01, schedule="cosine")
    optimizer = build_optimizer({"other": [free], "vectors": [bias], "skip": [skip], "orthogonal": [skew]}, chosen)
    groups = [(group["params"], group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    assert groups == [([free], 0.1, 0.2), ([bias], 0.1, 0.0), ([skip], 0.01, 0.0), ([skew], 0.003, 0.0)]
    schedule = build_schedule(optimizer, chosen, total_steps=2, epoch_steps=1)
    optimizer.step()
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.05, 0.005, 0.0015])
