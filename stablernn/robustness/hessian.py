"""Curvature of the loss: both ends of the Hessian's spectrum by Lanczos, its trace by Hutchinson's estimator.

Erichson and others, "Lipschitz recurrent neural networks" (ICLR 2021), compare models by these figures of the recurrent
unit's parameters at the trained weights. Everything is float64 and by double backward through the plain loop.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stablernn.nn.layers import StableRNN
from stablernn.nn.models import Classifier
from stablernn.training.batches.losses import Batch, ClassifyObjective

Vector = npt.NDArray[np.float64]
Product = Callable[[Vector], Vector]
"""From a vector to a symmetric matrix times it."""
Part = tuple[float, Callable[[], Tensor]]
"""How much a loss counts, and what computes it."""

STEPS = 100
TOLERANCE = 1e-3
_CHUNK = 64
"""Sequences whose graph is held at once."""


@dataclass(frozen=True)
class Ends:
    """Both ends of a symmetric matrix's spectrum.

    Attributes:
        largest: The largest eigenvalue.
        smallest: The smallest one.
        residuals: For each of them a distance within which there is an eigenvalue.
        steps: Products that were taken.
        converged: Whether both residuals are within the tolerance.
    """

    largest: float
    smallest: float
    residuals: tuple[float, float]
    steps: int
    converged: bool


def lanczos(product: Product, size: int, *, steps: int = STEPS, tolerance: float = TOLERANCE, seed: int = 0) -> Ends:
    """Both ends of the spectrum, every Lanczos vector kept orthogonal to all before it.

    Args:
        product: Of the matrix.
        size: Its rows.
        steps: Most products.
        tolerance: Residual at which to stop, as a share of the eigenvalue.
        seed: Of the first vector.
    """
    vector = np.random.default_rng(seed).standard_normal(size)
    basis: list[Vector] = [vector / float(np.linalg.norm(vector))]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        following: Vector = product(basis[-1])
        diagonal.append(float(basis[-1] @ following))
        known = np.stack(basis)
        for _ in range(2):
            following = following - known.T @ (known @ following)
        left = float(np.linalg.norm(following))
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
        residuals = left * abs(float(vectors[-1, -1])), left * abs(float(vectors[-1, 0]))
        ends = float(values[-1]), float(values[0])
        within = all(rest <= tolerance * abs(end) for rest, end in zip(residuals, ends, strict=True))
        exhausted = len(basis) == size or left <= 1e-12 * max(abs(end) for end in ends)
        if len(basis) >= min(steps, size) or within or exhausted:
            return Ends(*ends, residuals, len(basis), within or exhausted)
        beside.append(left)
        basis.append(following / left)


def hutchinson(
    product: Product, size: int, *, draws: int = STEPS, tolerance: float = TOLERANCE, seed: int = 0
) -> tuple[float, float, int]:
    """The trace by products with vectors of random signs.

    Args:
        product: Of the matrix.
        size: Its rows.
        draws: Most vectors, 2 or more.
        tolerance: Standard error at which to stop, as a share of the trace.
        seed: Of the vectors.

    Returns:
        The estimate, its standard error, and how many vectors were drawn.
    """
    random = np.random.default_rng(seed)
    found: list[float] = []
    while True:
        signs = random.choice(np.array([-1.0, 1.0]), size)
        found.append(float(signs @ product(signs)))
        if len(found) < 2:
            continue
        mean, error = float(np.mean(found)), float(np.std(found, ddof=1)) / math.sqrt(len(found))
        # Of a few draws that happen to agree the standard error says little.
        if len(found) >= draws or (len(found) >= 10 and error <= tolerance * abs(mean)):
            return mean, error, len(found)


def hessian_product(parts: Sequence[Part], parameters: Sequence[nn.Parameter]) -> Product:
    """Products with the Hessian of a weighted sum of losses, by double backward; one graph is held at a time.

    Args:
        parts: The losses, of the parameters' dtype.
        parameters: With respect to which.
    """

    def product(vector: Vector) -> Vector:
        pieces = _pieces(torch.from_numpy(vector), parameters)
        total = np.zeros_like(vector)
        for weight, loss in parts:
            slopes = torch.autograd.grad(loss(), parameters, create_graph=True, materialize_grads=True)
            along = torch.stack([(slope * piece).sum() for slope, piece in zip(slopes, pieces, strict=True)]).sum()
            if not along.requires_grad:
                continue
            bent = torch.autograd.grad(along, parameters, materialize_grads=True)
            total += weight * torch.cat([one.flatten() for one in bent]).cpu().double().numpy()
        return total

    return product


def loss_hessian(
    model: Classifier, batch: Batch, *, steps: int = STEPS, tolerance: float = TOLERANCE, seed: int = 0
) -> dict[str, Any]:
    """Curvature of the mean training loss over the parameters of the recurrent layers.

    The loss is the cross entropy of the given sequences as they are, with the cells' penalties: no augmentation, no
    dropout, no class weights, no smoothing.

    Args:
        model: At its trained weights; it is not changed.
        batch: Training sequences.
        steps: Most products with the Hessian, for the ends and for the trace each.
        tolerance: Relative, of both.
        seed: Of the random vectors.

    Returns:
        ``largest`` and ``smallest`` eigenvalue, their ``residuals``, Lanczos ``steps`` and whether they ``converged``;
        ``trace``, its ``trace_standard_error`` and ``trace_draws``; ``condition_number``, the largest eigenvalue over
        the modulus of the smallest; ``parameters`` and ``sequences``, of how many.
    """
    exact, parameters = _exact(model)
    product = hessian_product(_parts(exact, batch), parameters)
    size = sum(parameter.numel() for parameter in parameters)
    ends = lanczos(product, size, steps=steps, tolerance=tolerance, seed=seed)
    trace, error, draws = hutchinson(product, size, draws=steps, tolerance=tolerance, seed=seed)
    return {
        "largest": ends.largest,
        "smallest": ends.smallest,
        "residuals": list(ends.residuals),
        "steps": ends.steps,
        "converged": ends.converged,
        "trace": trace,
        "trace_standard_error": error,
        "trace_draws": draws,
        "condition_number": ends.largest / abs(ends.smallest) if ends.smallest else math.inf,
        "parameters": size,
        "sequences": len(batch.x),
    }


def _exact(model: Classifier) -> tuple[Classifier, list[nn.Parameter]]:
    """The model in float64 on the plain loop, and its recurrent layers' parameters, which alone have gradients."""
    exact = copy.deepcopy(model).double().eval().requires_grad_(False)
    stacks = [stack for stack in exact.rnn.stacks if isinstance(stack, StableRNN)]
    for stack in stacks:
        # Fused kernels have no double backward.
        stack.engine = "loop"
        stack.requires_grad_(True)
    return exact, [parameter for stack in stacks for parameter in stack.parameters()]


def _parts(model: Classifier, batch: Batch) -> list[Part]:
    task, count = ClassifyObjective(), len(batch.x)

    def part(rows: slice) -> Part:
        dt = None if batch.dt is None else batch.dt[rows].double()
        chosen = Batch(batch.x[rows].double(), batch.lengths[rows], batch.y[rows], dt)
        return len(chosen.x) / count, lambda: task.loss(model, chosen)

    return [part(slice(start, start + _CHUNK)) for start in range(0, count, _CHUNK)]


def _pieces(vector: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """A flat vector in the shapes of parameters, on their device."""
    found = torch.split(vector, [parameter.numel() for parameter in parameters])
    return [piece.reshape(one.shape).to(one) for piece, one in zip(found, parameters, strict=True)]
