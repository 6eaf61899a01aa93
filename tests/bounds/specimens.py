"""Cells and models to be probed: as they start, drawn anew, with options, extreme, trained, adversarial."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bounds.step_search import checked
from cells.test_reference import VARIANTS
from model_helpers import mark_fitted
from stablernn import Classifier, create_cell, list_cells
from stablernn.bounds.step_bound import StepBound
from stablernn.cells import StableCell, cell_info
from stablernn.certificates.certificate import certify
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.projection import certified_kind, project_model
from stablernn.data import ClassificationData, load_data
from stablernn.errors import ConfigError
from stablernn.nn.models import SequenceModel

CERTIFIED_INPUTS = InputRange.of(3.0)
"""Range of the inputs for which cells are trained certified that have no region for all of them."""
DRAWS = ("fresh", "small", "large")

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((key, options) for key, options in VARIANTS if options),
    *(
        (key, {"nonlinearity": word})
        for key in list_cells()
        for word in getattr(cell_info(key).cell, "nonlinearities", ())
        if "nonlinearity" in cell_info(key).options()
    ),
    ("antisymmetric", {"step_size": 2.5, "damping": 0.7}),
    ("cfc", {"backbone_layers": 2, "activation": "silu"}),
    ("cornn", {"step_size": 0.1, "stiffness": 9.0, "damping": 0.1}),
    ("exprnn", {"parametrization": "cayley", "nonlinearity": "modrelu"}),
    ("fastrnn", {"alpha_init": 3.0, "beta_init": -3.0}),
    ("gru", {"update_bias": -4.0}),
    ("gru_d", {"imputation": "none"}),
    ("gru_d", {"imputation": "none", "init_decay": 1.0}),
    ("incremental", {"inner_steps": 1, "nonlinearity": "tanh", "leak": 2.0, "start": "previous"}),
    ("lem", {"step_size": 1.0}),
    ("lem", {"step_size": 1.6}),
    ("lipschitz", {"linear_damping": 3.0, "step_size": 0.9}),
    ("lru", {"min_radius": 0.0, "max_radius": 0.3, "activation": "none"}),
    ("nais_net", {"margin": 0.45, "step_size": 0.1}),
    ("noisy_rnn", {"step_size": 2.0, "linear_damping": 1.0}),
    ("ren", {"num_neurons": 3, "contraction_rate": 0.5, "margin": 0.5}),
    ("slstm", {"num_heads": 2}),
    ("soft_orth", {"form": "factored", "margin": 0.5}),
    ("unicornn", {"step_size": 0.2, "stiffness": 9.0, "speed_range": 0.1}),
]
"""Options that change a step: those of the reference tests, the preset ``paper`` among them, and further ones."""


def sampled(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """All cases of a sweep, of which those that are not quick are slow tests."""
    return [
        case if case in quick else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]


def drawn(
    key: str, hidden: int, draw: str = "fresh", *, features: int = 2, seed: int | None = None, **options: Any
) -> StableCell:
    """A cell as it starts, or with all its parameters drawn anew, as after an optimizer step."""
    torch.manual_seed(hidden if seed is None else seed)
    cell = create_cell(key, features, hidden, **options)
    if draw != "fresh":
        for parameter in cell.parameters():
            nn.init.normal_(parameter, std=(0.1 if draw == "small" else 1.0) * hidden**-0.5)
        with torch.no_grad():
            cell.after_step(1, 100)
    return cell.eval()


def proved(cell: StableCell) -> StepBound:
    """What is certified of a cell's step."""
    return certify(cell, stored=False).stacks[0].bounds[0]


def _orthogonal(rows: int, columns: int) -> Tensor:
    return nn.init.orthogonal_(torch.empty(rows, columns))


def _repeated(rows: int, columns: int) -> Tensor:
    """Singular values 1, each of which occurs twice or more, and zeros."""
    values = torch.eye(rows, columns)
    values[max(1, min(rows, columns) // 2) :] = 0
    return _orthogonal(rows, rows) @ values @ _orthogonal(columns, columns)


EXTREMES: dict[str, Callable[[int, int], Tensor]] = {
    "zero": torch.zeros,
    "tiny": lambda rows, columns: 1e-30 * torch.randn(rows, columns),
    "thousands": lambda rows, columns: 1e3 * torch.randn(rows, columns),
    "huge": lambda rows, columns: 1e9 * torch.randn(rows, columns),
    "identity": torch.eye,
    "doubled": lambda rows, columns: 2 * torch.eye(rows, columns),
    "reflected": lambda rows, columns: -torch.eye(rows, columns),
    "permutation": lambda rows, columns: torch.eye(rows, columns)[torch.randperm(rows)],
    "nilpotent": lambda rows, columns: 2 * torch.eye(max(rows, columns) + 1)[1 : rows + 1, :columns].tril(-1),
    "triangular": lambda rows, columns: torch.randn(rows, columns).triu(1),
    "orthogonal": _orthogonal,
    "repeated": _repeated,
    "rank one": lambda rows, columns: torch.randn(rows, 1) @ torch.randn(1, columns) / math.sqrt(columns),
    "ones": lambda rows, columns: torch.ones(rows, columns) / columns,
    "one entry": lambda rows, columns: torch.zeros(rows, columns).index_put_((torch.tensor(0),) * 2, torch.tensor(1.0)),
    "signs": lambda rows, columns: torch.randn(rows, columns).sign() / math.sqrt(columns),
    "uneven": lambda rows, columns: (
        torch.randn(rows, columns) * torch.logspace(-6, 1, rows)[:, None] * torch.logspace(1, -6, columns)
    ),
}
"""Matrices that random ones are never like."""


def extreme(key: str, hidden: int, kind: str, *, features: int = 2) -> StableCell:
    """A cell all of whose matrices are of one kind; those of gates one over the other each for itself."""
    torch.manual_seed(hidden)
    cell = create_cell(key, features, hidden)
    make = EXTREMES[kind]
    for parameter in cell.parameters():
        with torch.no_grad():
            if parameter.dim() == 2:
                height = hidden if parameter.shape[0] % hidden == 0 else parameter.shape[0]
                parameter.copy_(torch.cat([make(height, parameter.shape[1]) for _ in range(len(parameter) // height)]))
            elif parameter.numel():
                parameter.copy_(make(1, parameter.numel()).reshape(parameter.shape))
    with torch.no_grad():
        cell.after_step(1, 100)
    return cell.eval()


def waves() -> tuple[Tensor, Tensor]:
    """Three classes of noisy waves, ``(samples, time, features)``, and their labels."""
    generator = torch.Generator().manual_seed(4)
    y = torch.arange(48) % 3
    time = torch.arange(8)[:, None] + torch.arange(2)
    noise = 0.3 * torch.randn(len(y), *time.shape, generator=generator)
    return torch.sin(time * (0.5 + y[:, None, None])) + noise, y


@cache
def digits() -> tuple[Tensor, Tensor]:
    """200 of the handwritten digits, row by row, and what they are."""
    data = load_data("digits")
    assert isinstance(data, ClassificationData)
    samples = data.split("train").gather(np.arange(200))
    x = torch.from_numpy(samples.x).reshape(200, 8, 8)
    return (x - x.mean()) / x.std(), torch.from_numpy(samples.y)


def trained(
    key: str,
    hidden: int = 6,
    *,
    data: tuple[Tensor, Tensor] | None = None,
    steps: int = 30,
    lr: float = 0.05,
    certified: bool = False,
    seed: int | None = None,
    **options: Any,
) -> SequenceModel:
    """A classifier after some optimizer steps, with the cells' penalties and projections.

    Args:
        key: Of the cell.
        hidden: Units.
        data: Sequences and labels; None for :func:`waves`.
        steps: Of the optimizer, on all samples each.
        lr: Of Adam.
        certified: Whether the cells are projected onto their certified regions after each step.
        seed: Of the first weights; None for the number of units.
        options: Further ones of :class:`stablernn.Classifier`.
    """
    torch.manual_seed(hidden if seed is None else seed)
    x, y = waves() if data is None else data
    model = mark_fitted(Classifier(key, x.shape[2], int(y.max()) + 1, hidden, **options))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(1, steps + 1):
        loss = nn.functional.cross_entropy(model(x), y)
        penalty = model.rnn.penalty()
        (loss if penalty is None else loss + penalty).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.rnn.after_step(step, steps)
        if certified:
            certified_kind(model.rnn.cells[0])
            project_model(model, 1e-3, CERTIFIED_INPUTS)
    return model.eval()


def certifiable() -> list[str]:
    """Keys that training can keep certified."""
    found = []
    for key in list_cells():
        try:
            certified_kind(create_cell(key, 1, 2))
        except ConfigError:
            continue
        found.append(key)
    return found


def climbed(key: str, hidden: int, *, rounds: int, claim: str, seed: int = 0) -> tuple[StableCell, float]:
    """Weights by which a search comes as close as it can to the certified number, and how close, 1 being all the way.

    Random hill climbing: of each round's change what brings the number found nearer to the one proved is kept.
    """
    cell = drawn(key, hidden, "small", seed=seed)
    generator = torch.Generator().manual_seed(seed)
    best = closeness(cell, claim)
    for turn in range(rounds if best else 0):
        if best > 0.9999:
            break
        before = [parameter.detach().clone() for parameter in cell.parameters()]
        with torch.no_grad():
            for parameter in cell.parameters():
                change = torch.randn(parameter.shape, generator=generator)
                scale = parameter.abs().mean() if parameter.numel() else torch.tensor(0.0)
                match turn % 3:
                    case 0:
                        parameter.add_(0.3 * scale * change)
                    case 1:
                        parameter.mul_(1 + 0.5 * float(torch.randn((), generator=generator)))
                    case _:
                        parameter.add_(scale * change * (torch.rand(parameter.shape, generator=generator) < 0.2))
            cell.after_step(1, 100)
        reached = closeness(cell, claim)
        if reached > best:
            best = reached
            continue
        with torch.no_grad():
            for parameter, old in zip(cell.parameters(), before, strict=True):
                parameter.copy_(old)
    return cell, best


def closeness(cell: StableCell, claim: str) -> float:
    """The largest share of a claim that was found, 0 where it is not made."""
    seen = checked(cell, proved(cell), pairs=8, searches=4, steps=20)
    return max((one.share for one in seen if one.claim.startswith(claim)), default=0.0)
