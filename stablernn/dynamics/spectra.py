"""Jacobians of the recurrent layers along real sequences: an observation of these, and no proof about others.

Everything is float64 on the matrices that are built from the float32 weights, and on the channels that preprocessing
makes of the sequences (scaled, in patches, embedded).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.bounds.intervals import FLOAT32_EPSILON
from stablernn.bounds.step_bound import StepBound
from stablernn.cells import StableCell
from stablernn.certificates.certificate import Certificate
from stablernn.data.arrays import Samples
from stablernn.dynamics.lyapunov import tangent_map
from stablernn.errors import CertificateError
from stablernn.nn.ensemble import Ensemble
from stablernn.nn.layers import StableRNN
from stablernn.nn.models import SequenceModel
from stablernn.nn.models._base import States

Array = npt.NDArray[Any]

NOT_RECURRENT = ("output", "started", "count", "last", "elapsed")
"""State tensors that no later state depends on, or that are functions of the inputs and of time alone."""


@dataclass(frozen=True)
class Block:
    """One layer: where its state tensors are in the flat state, and in a Jacobian.

    Attributes:
        label: The layer as a certificate names it: ``member 0 layer 1``; empty if there is one layer.
        cell: Of the layer.
        names: Of its state tensors, as certificates and exported graphs have them.
        columns: For each state tensor the indices of its entries in the flat state.
        indices: For each state tensor the indices of its directions; empty for those of :data:`NOT_RECURRENT`.
    """

    label: str
    cell: StableCell
    names: tuple[str, ...]
    columns: tuple[Array, ...]
    indices: tuple[Array, ...]

    def covered(self, bound: StepBound) -> Array:
        """Return the indices of the directions that a bound of the layer is of."""
        places = [self.cell.state_names.index(name) for name in bound.covers]
        return np.concatenate([self.indices[place] for place in places])


class LayerDynamics:
    """A model's recurrent layers along sequences, as a map of one flat float64 state.

    Args:
        model: The model, on any device; it is not changed.
        samples: The sequences in raw units.

    Attributes:
        rnn: A float64 copy of the layers.
        features: ``(batch, steps, channels)`` float64, the input of the layers; NaN is a missing value, for a cell that
            takes NaN.
        lengths: ``(batch,)``, steps of each sequence.
        dt: ``(batch, steps)``, of models for irregular time; else None.
        preprocessing_state: The state of scaling and patches after the last step.
        directions: The indices of the recurrent entries of the flat state, ``(m,)``.
    """

    def __init__(self, model: SequenceModel, samples: Samples) -> None:
        copied = copy.deepcopy(model).cpu().eval().requires_grad_(False)
        # Matrices are built in float32, as every step of the model uses them, and only then converted.
        self._weights = [tuple(_to_float64(tensor) for tensor in weights) for weights in copied.materialize()]
        features, steps, preprocessing_state, dt = _layer_inputs(copied, samples)
        self.features = features.double()
        self.lengths = torch.full((len(features),), features.shape[1]) if steps is None else steps
        self.dt = None if dt is None else dt.double()
        self.preprocessing_state: States = tuple(tensor.double() for tensor in preprocessing_state)
        self.rnn: Ensemble = copied.rnn.double()
        self._sizes = [size for _, size in self.rnn.state_roles()]
        names = [name for cell in self.rnn.cells for name in cell.state_names]
        ends = np.cumsum(self._sizes)
        recurrent = [
            np.arange(end - size, end)
            for name, size, end in zip(names, self._sizes, ends, strict=True)
            if name not in NOT_RECURRENT
        ]
        self.directions = torch.from_numpy(np.concatenate(recurrent))

    @property
    def size(self) -> int:
        """Length of the flat state."""
        return sum(self._sizes)

    @property
    def steps(self) -> int:
        """Steps of the longest sequence."""
        return int(self.features.shape[1])

    @property
    def step_size(self) -> float | None:
        """Length of the layers' Euler step; None if they differ or steps are irregular."""
        lengths = {getattr(cell, "step_size", None) for cell in self.rnn.cells}
        return lengths.pop() if self.dt is None and len(lengths) == 1 else None

    def start(self) -> Tensor:
        """Return the state before the first step, ``(batch, size)``."""
        return self.features.new_zeros(len(self.features), self.size)

    def step(self, t: int, state: Tensor) -> Tensor:
        """Return the states ``(batch, size)`` after step ``t`` of every sequence, also in the padding."""
        return self._advance(self.features[:, t], None if self.dt is None else self.dt[:, t], state)

    def push(self, t: int, state: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        """Return :meth:`step` and its Jacobians times tangents ``(batch, m, k)`` of the recurrent directions."""
        return self._push_tangents(lambda _, point: self.step(t, point), state, tangents)

    def split(self, state: Tensor) -> States:
        """Return the state tensors of a flat state."""
        return tuple(torch.split(state, self._sizes, dim=-1))

    def trajectory(self) -> Tensor:
        """Return the states ``(batch, steps + 1, size)``, the initial one first.

        Raises:
            CertificateError: If a state is not finite.
        """
        state = self.start()
        states = [state]
        with torch.no_grad():
            for t in range(self.steps):
                state = self.step(t, state)
                states.append(state)
        trajectory = torch.stack(states, dim=1)
        is_valid = torch.arange(self.steps + 1) <= self.lengths[:, None]
        if not bool(torch.isfinite(trajectory[is_valid]).all()):
            raise CertificateError(
                "The state of the layers is not finite on these sequences: there is nothing to observe. Leave the "
                "observation out, or train with a smaller learning rate or a more stable cell."
            )
        return trajectory

    def jacobians(self, states: Tensor, max_samples: int) -> Tensor:
        """Return the Jacobians of steps that are evenly spread over all sequences, ``(samples, m, m)``.

        Args:
            states: As :meth:`trajectory` returned them.
            max_samples: The largest number of them, 1 or more.
        """
        # Indices of the sequence and of the step, of every step that is no padding.
        rows, steps = np.nonzero(np.arange(self.steps) < self.lengths.numpy()[:, None])
        samples = np.unique(np.linspace(0, len(rows) - 1, min(max_samples, len(rows))).round().astype(np.int64))
        row, t = torch.from_numpy(rows[samples]), torch.from_numpy(steps[samples])
        dt = None if self.dt is None else self.dt[row, t]
        features, count = self.features[row, t], len(self.directions)
        # The products with all unit tangents are the columns of the Jacobian.
        tangents = torch.eye(count, dtype=torch.float64).expand(len(row), count, count)
        with torch.no_grad():
            return self._push_tangents(lambda _, point: self._advance(features, dt, point), states[row, t], tangents)[1]

    def blocks(self) -> Iterator[Block]:
        """Yield the layers, member after member, each from the input on."""
        stacks = [stack for stack in self.rnn.stacks if isinstance(stack, StableRNN)]
        numbers = itertools.count(len(self.preprocessing_state))
        entry = direction = 0
        for number, stack in enumerate(stacks):
            for depth, cell in enumerate(stack.cells):
                labels = [f"member {number}"] * (len(stacks) > 1) + [f"layer {depth}"] * (len(stack.cells) > 1)
                names, columns, indices = [], [], []
                for name, size in zip(cell.state_names, cell.state_sizes, strict=True):
                    count = 0 if name in NOT_RECURRENT else size
                    names.append(f"state_{next(numbers)}")
                    columns.append(np.arange(entry, entry + size))
                    indices.append(np.arange(direction, direction + count))
                    entry, direction = entry + size, direction + count
                yield Block(" ".join(labels), cell, tuple(names), tuple(columns), tuple(indices))

    def _advance(self, features: Tensor, dt: Tensor | None, state: Tensor) -> Tensor:
        """Return the flat state after one step."""
        column = None if dt is None else dt[:, None]
        return torch.cat(self.rnn.advance(self._weights, features, self.split(state), column), dim=-1)

    def _push_tangents(self, step: Any, state: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next state, and the Jacobians of a step times tangents of the recurrent directions."""
        # (batch, size, k), zero in all directions that are not recurrent.
        flat_tangents = tangents.new_zeros(len(tangents), self.size, tangents.shape[2])
        flat_tangents[:, self.directions] = tangents
        next_state, next_tangents = tangent_map(step)(0, state, flat_tangents)
        return next_state, next_tangents[:, self.directions]


@dataclass(frozen=True)
class Spectra:
    """Eigenvalues and singular values of Jacobians of single steps.

    Attributes:
        eigenvalues: ``(samples, m)``.
        largest: Largest singular value of each, ``(samples,)``.
        smallest: The smallest ones.
        departure: Henrici's departure from normality, ``sqrt(|J|_F^2 - sum |l|^2)``; 0 of a normal matrix.
        step_size: Length of an Euler step; None if the layers take none.
    """

    eigenvalues: Array
    largest: Array
    smallest: Array
    departure: Array
    step_size: float | None

    @property
    def radii(self) -> Array:
        """The spectral radius of each, ``(samples,)``."""
        radii: Array = np.abs(self.eigenvalues).max(axis=1)
        return radii

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON types; docs/reference/reports.md explains each."""
        moduli = np.abs(self.eigenvalues)
        rounding = moduli.shape[1] * FLOAT32_EPSILON
        # Eigenvalues of the vector field behind an Euler step: (J - I) / step_size.
        real = None if self.step_size is None else (np.real(self.eigenvalues) - 1) / self.step_size
        return {
            "samples": len(self.eigenvalues),
            "size": self.eigenvalues.shape[1],
            "spectral_radius": _statistics(self.radii),
            "mean_modulus": float(moduli.mean()),
            "share_outside": float((moduli > 1 + rounding).mean()),
            "largest_singular_value": _statistics(self.largest),
            "smallest_singular_value": _statistics(self.smallest),
            "departure_from_normality": _statistics(self.departure),
            "continuous_real_part": None if real is None else _statistics(real),
        }


def spectra(jacobians: Tensor, step_size: float | None = None) -> Spectra:
    """Compute eigenvalues, singular values and departure from normality.

    Args:
        jacobians: ``(samples, m, m)`` float64.
        step_size: Length ``e`` of an Euler step, for the eigenvalues of ``(J - I) / e``.
    """
    eigenvalues = torch.linalg.eigvals(jacobians)
    singular = torch.linalg.svdvals(jacobians)
    # Rounding can leave a normal matrix slightly below 0.
    excess = singular.square().sum(dim=1) - eigenvalues.abs().square().sum(dim=1)
    return Spectra(
        eigenvalues=eigenvalues.numpy(),
        largest=singular[:, 0].numpy(),
        smallest=singular[:, -1].numpy(),
        departure=excess.clamp_min(0).sqrt().numpy(),
        step_size=step_size,
    )


def largest_step_factors(jacobians: Tensor, layers: LayerDynamics, certificate: Certificate) -> list[dict[str, Any]]:
    """Return the largest factors by which single steps stretched a difference, by layer, in the certificate's norm.

    Returns:
        Rows of ``layer``, ``norm`` and ``factor``, of the layers for which a rate is proved; none for models of
        irregular time, whose steps are not the regular one that a certificate is of.
    """
    if layers.dt is not None:
        return []
    rows = []
    for block, bound in zip(layers.blocks(), certificate.bounds, strict=True):
        if bound.norm is not None:
            indices = block.covered(bound)
            # The diagonal block of the layer alone.
            block_jacobians = jacobians[:, indices][:, :, indices].numpy()
            factor = float(_norms(block_jacobians, bound).max())
            rows.append({"layer": block.label, "norm": bound.norm, "factor": factor})
    return rows


def certified_radius(layers: LayerDynamics, certificate: Certificate) -> float | None:
    """Return the proved bound on the modulus of every eigenvalue; None if it does not cover the whole state."""
    if layers.dt is not None:
        return None
    for block, bound in zip(layers.blocks(), certificate.bounds, strict=True):
        # An eigenvalue of a state tensor outside of the bound may have any modulus.
        if bound.norm is None or set(block.cell.state_names) - set(bound.covers) - set(NOT_RECURRENT):
            return None
    return certificate.rate


def _norms(jacobians: Array, bound: StepBound) -> Array:
    """Return the norm of each Jacobian in which the bound is stated, ``(samples,)``."""
    if bound.norm == "linf":
        weights = np.ones(jacobians.shape[1]) if bound.weights is None else bound.weights
        rows: Array = (np.abs(jacobians) * weights[None, None] / weights[None, :, None]).sum(axis=2).max(axis=1)
        return rows
    if bound.metric is not None:
        jacobians = bound.metric @ jacobians @ np.linalg.inv(bound.metric)
    norms: Array = np.linalg.norm(jacobians, 2, axis=(1, 2))
    return norms


def _layer_inputs(model: SequenceModel, samples: Samples) -> tuple[Tensor, Tensor | None, States, Tensor | None]:
    """Return the layers' input, its number of steps, the state of scaling and patches after these, and their times."""
    x, dt = torch.from_numpy(samples.x), None
    if model.max_dt is not None:
        dt = torch.ones(x.shape[:2]) if samples.dt is None else torch.from_numpy(samples.dt)
    with torch.no_grad():
        return model.layer_inputs(x, torch.from_numpy(samples.lengths), dt)


def _to_float64(tensor: Tensor) -> Tensor:
    """Convert a float32 tensor to float64, a complex one to complex128; integers stay as they are."""
    values = tensor.detach()
    if values.is_complex():
        return values.to(torch.complex128)
    return values.double() if values.is_floating_point() else values


def _statistics(values: Array) -> dict[str, float]:
    return {"mean": float(values.mean()), "least": float(values.min()), "most": float(values.max())}
