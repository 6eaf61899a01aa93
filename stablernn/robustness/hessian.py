"""Curvature of the loss: extreme eigenvalues of the Hessian by Lanczos, its trace by Hutchinson's estimator.

Erichson and others, "Lipschitz recurrent neural networks" (ICLR 2021), compare models by these figures of the recurrent
unit's parameters at the trained weights. Everything is float64 and by double backward through the plain loop.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stablernn.nn.layers import StableRNN
from stablernn.nn.models import Classifier
from stablernn.training.loop.losses import ClassifyObjective
from stablernn.training.loop.minibatches import Batch

Vector = npt.NDArray[np.float64]
Product = Callable[[Vector], Vector]
"""The product of a symmetric matrix and a vector."""
WeightedLoss = tuple[float, Callable[[], Tensor]]
"""The weight of a loss, and the function that computes it."""

MAX_PRODUCTS = 100
TOLERANCE = 1e-3
"""Residual of an eigenvalue, and standard error of the trace, at which to stop, as a share of them."""
_CHUNK_SIZE = 64
"""Sequences per autograd graph, which limits the memory of double backward."""


@dataclass(frozen=True)
class ExtremeEigenvalues:
    """The largest and the smallest eigenvalue of a symmetric matrix.

    Attributes:
        largest: The largest eigenvalue.
        smallest: The smallest eigenvalue.
        residuals: For each of them, a distance within which the matrix has an eigenvalue.
        steps: Number of matrix-vector products.
        converged: Whether both residuals are within the tolerance.
    """

    largest: float
    smallest: float
    residuals: tuple[float, float]
    steps: int
    converged: bool


def lanczos(product: Product, size: int, *, steps: int = MAX_PRODUCTS, seed: int = 0) -> ExtremeEigenvalues:
    """Compute the extreme eigenvalues by the Lanczos method with full reorthogonalization.

    Args:
        product: Product of the matrix with a vector.
        size: Number of rows of the matrix.
        steps: Maximum number of products.
        seed: Seed of the first vector.
    """
    vector = np.random.default_rng(seed).standard_normal(size)
    basis: list[Vector] = [vector / float(np.linalg.norm(vector))]
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    while True:
        next_vector: Vector = product(basis[-1])
        diagonal.append(float(basis[-1] @ next_vector))
        basis_matrix = np.stack(basis)
        # Twice, because rounding leaves components along the basis after a single Gram-Schmidt pass.
        for _ in range(2):
            next_vector = next_vector - basis_matrix.T @ (basis_matrix @ next_vector)
        next_norm = float(np.linalg.norm(next_vector))
        # Eigenvalues of the tridiagonal matrix, ascending.
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1))
        residuals = next_norm * abs(float(vectors[-1, -1])), next_norm * abs(float(vectors[-1, 0]))
        extremes = float(values[-1]), float(values[0])
        is_within = all(residual <= TOLERANCE * abs(value) for residual, value in zip(residuals, extremes, strict=True))
        # The Krylov space is invariant, so its eigenvalues are exact.
        is_exhausted = len(basis) == size or next_norm <= 1e-12 * max(abs(value) for value in extremes)
        if len(basis) >= min(steps, size) or is_within or is_exhausted:
            return ExtremeEigenvalues(*extremes, residuals, len(basis), is_within or is_exhausted)
        off_diagonal.append(next_norm)
        basis.append(next_vector / next_norm)


def hutchinson(product: Product, size: int, *, draws: int = MAX_PRODUCTS, seed: int = 0) -> tuple[float, float, int]:
    """Estimate the trace by products with vectors of random signs.

    Args:
        product: Product of the matrix with a vector.
        size: Number of rows of the matrix.
        draws: Maximum number of vectors, 2 or more.
        seed: Seed of the vectors.

    Returns:
        The estimate, its standard error, and the number of vectors.
    """
    random = np.random.default_rng(seed)
    estimates: list[float] = []
    while True:
        signs = random.choice(np.array([-1.0, 1.0]), size)
        estimates.append(float(signs @ product(signs)))
        if len(estimates) < 2:
            continue
        mean, error = float(np.mean(estimates)), float(np.std(estimates, ddof=1)) / math.sqrt(len(estimates))
        # At least ten draws: a few may agree by chance and make the standard error too small.
        if len(estimates) >= draws or (len(estimates) >= 10 and error <= TOLERANCE * abs(mean)):
            return mean, error, len(estimates)


def hessian_product(losses: Sequence[WeightedLoss], parameters: Sequence[nn.Parameter]) -> Product:
    """Return the product with the Hessian of a weighted sum of losses, by double backward.

    Only the autograd graph of one loss is in memory at a time.

    Args:
        losses: The losses, in the dtype of the parameters.
        parameters: Parameters with respect to which the Hessian is taken.
    """

    def product(vector: Vector) -> Vector:
        directions = _split_vector(torch.from_numpy(vector), parameters)
        total = np.zeros_like(vector)
        for weight, loss in losses:
            gradients = torch.autograd.grad(loss(), parameters, create_graph=True, materialize_grads=True)
            # H v is the gradient of the directional derivative <g, v>.
            directional = torch.stack(
                [(gradient * part).sum() for gradient, part in zip(gradients, directions, strict=True)]
            ).sum()
            # A loss that is linear in the parameters has no second derivative.
            if not directional.requires_grad:
                continue
            products = torch.autograd.grad(directional, parameters, materialize_grads=True)
            total += weight * torch.cat([part.flatten() for part in products]).cpu().double().numpy()
        return total

    return product


def loss_hessian(model: Classifier, batch: Batch, *, steps: int = MAX_PRODUCTS, seed: int = 0) -> dict[str, Any]:
    """Measure the curvature of the mean training loss with respect to the parameters of the recurrent layers.

    The loss is the cross entropy of the unmodified sequences plus the penalties of the cells: no augmentation, dropout,
    class weights or label smoothing.

    Args:
        model: The trained model; it is not changed.
        batch: Training sequences.
        steps: Maximum number of products with the Hessian, for the eigenvalues and for the trace each.
        seed: Seed of the random vectors.

    Returns:
        ``largest`` and ``smallest`` eigenvalue, their ``residuals``, Lanczos ``steps`` and whether they ``converged``;
        ``trace``, its ``trace_standard_error`` and ``trace_draws``; ``condition_number``, the largest eigenvalue over
        the modulus of the smallest; the numbers of ``parameters`` and ``sequences``.
    """
    double_model, parameters = _double_copy(model)
    product = hessian_product(_chunk_losses(double_model, batch), parameters)
    size = sum(parameter.numel() for parameter in parameters)
    extremes = lanczos(product, size, steps=steps, seed=seed)
    trace, error, draws = hutchinson(product, size, draws=steps, seed=seed)
    return {
        **asdict(extremes),
        "trace": trace,
        "trace_standard_error": error,
        "trace_draws": draws,
        "condition_number": extremes.largest / abs(extremes.smallest) if extremes.smallest else math.inf,
        "parameters": size,
        "sequences": len(batch.x),
    }


def _double_copy(model: Classifier) -> tuple[Classifier, list[nn.Parameter]]:
    """Return a float64 copy of the model on the plain loop, and the parameters of its recurrent layers.

    Only these parameters require gradients.
    """
    double_model = copy.deepcopy(model).double().eval().requires_grad_(False)
    stacks = [stack for stack in double_model.rnn.stacks if isinstance(stack, StableRNN)]
    for stack in stacks:
        # Fused kernels have no double backward.
        stack.engine = "loop"
        stack.requires_grad_(True)
    return double_model, [parameter for stack in stacks for parameter in stack.parameters()]


def _chunk_losses(model: Classifier, batch: Batch) -> list[WeightedLoss]:
    task, count = ClassifyObjective(), len(batch.x)

    def chunk_loss(rows: slice) -> WeightedLoss:
        dt = None if batch.dt is None else batch.dt[rows].double()
        chunk = Batch(batch.x[rows].double(), batch.lengths[rows], batch.y[rows], dt)
        # A loss is a mean over its sequences, so that chunks are weighted by their share of the batch.
        return len(chunk.x) / count, lambda: task.loss(model, chunk)

    return [chunk_loss(slice(start, start + _CHUNK_SIZE)) for start in range(0, count, _CHUNK_SIZE)]


def _split_vector(vector: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Split a flat vector into tensors with the shapes and devices of the parameters."""
    chunks = torch.split(vector, [parameter.numel() for parameter in parameters])
    return [chunk.reshape(parameter.shape).to(parameter) for chunk, parameter in zip(chunks, parameters, strict=True)]
