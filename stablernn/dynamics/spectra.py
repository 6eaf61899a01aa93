"""Jacobians of the recurrent layers along real sequences: what was observed there, and not what holds elsewhere.

Everything is float64 on the matrices that the float32 weights stand for, and on the channels that the model makes of
the sequences (scaled, in patches, embedded).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.bounds.step_bound import FLOAT32_EPSILON, StepBound
from stablernn.cells import StableCell
from stablernn.certificates.certificate import Certificate
from stablernn.data.windows import Samples
from stablernn.dynamics.lyapunov import tangent_map
from stablernn.errors import CertificateError
from stablernn.nn.ensemble import Ensemble
from stablernn.nn.layers import StableRNN, valid_steps
from stablernn.nn.models import SequenceModel, SequencePredictor
from stablernn.nn.models._base import States

Array = npt.NDArray[Any]

NOT_RECURRENT = ("output", "started", "count", "last", "elapsed")
"""State tensors that no later state depends on, or that are functions of the inputs and of time alone."""


@dataclass(frozen=True)
class Block:
    """Where the state tensors of one layer stand among the directions of a Jacobian.

    Attributes:
        place: The layer in words, as a certificate names it: ``member 0 layer 1``; empty where there is one layer.
        cell: Of the layer.
        places: For each state tensor the numbers of its directions; empty for those of :data:`NOT_RECURRENT`.
    """

    place: str
    cell: StableCell
    places: tuple[Array, ...]


class LayerDynamics:
    """A model's recurrent layers along given sequences, as a map of one flat float64 state.

    Args:
        model: The model, on any device; it is not changed.
        samples: The sequences in raw units.

    Attributes:
        rnn: A float64 copy of the layers.
        features: ``(batch, steps, channels)`` float64, what they read; NaN where missing and the cell takes that.
        lengths: ``(batch,)``, steps of each sequence.
        dt: ``(batch, steps)``, of models for irregular time; else None.
        entered: What scaling and patches hold after the last step.
        directions: Which numbers of the flat state are recurrent, ``(m,)``.
    """

    def __init__(self, model: SequenceModel, samples: Samples) -> None:
        alike = copy.deepcopy(model).cpu().eval().requires_grad_(False)
        self._weights = [tuple(_exact(tensor) for tensor in weights) for weights in alike.materialize()]
        features, groups, entered, dt = _inputs(alike, samples)
        self.features = features.double()
        self.lengths = torch.full((len(features),), features.shape[1]) if groups is None else groups
        self.dt = None if dt is None else dt.double()
        self.entered: States = tuple(tensor.double() for tensor in entered)
        self.rnn: Ensemble = alike.rnn.double()
        self._sizes = [size for _, size in self.rnn.state_roles()]
        names = [name for cell in self.rnn.cells for name in cell.state_names]
        ends = np.cumsum(self._sizes)
        kept = [
            np.arange(end - size, end)
            for name, size, end in zip(names, self._sizes, ends, strict=True)
            if name not in NOT_RECURRENT
        ]
        self.directions = torch.from_numpy(np.concatenate(kept))

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
        """Length of the layers' Euler step, where all have the same and steps are regular."""
        lengths = {getattr(cell, "step_size", None) for cell in self.rnn.cells}
        return lengths.pop() if self.dt is None and len(lengths) == 1 else None

    def start(self) -> Tensor:
        """The state before the first step, ``(batch, size)``."""
        return self.features.new_zeros(len(self.features), self.size)

    def step(self, t: int, state: Tensor) -> Tensor:
        """The states ``(batch, size)`` after step ``t`` of every sequence; of a short one also over its padding."""
        return self._advance(self.features[:, t], None if self.dt is None else self.dt[:, t], state)

    def push(self, t: int, state: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`step`, and its Jacobians times tangents ``(batch, m, k)`` of the recurrent directions."""
        return self._pushed(lambda _, at: self.step(t, at), state, tangents)

    def split(self, state: Tensor) -> States:
        """The state tensors that a flat state stands for."""
        return tuple(torch.split(state, self._sizes, dim=-1))

    def trajectory(self) -> Tensor:
        """The states ``(batch, steps + 1, size)``, the start first.

        Raises:
            CertificateError: If one is not finite.
        """
        state = self.start()
        states = [state]
        with torch.no_grad():
            for t in range(self.steps):
                state = self.step(t, state)
                states.append(state)
        found = torch.stack(states, dim=1)
        inside = torch.arange(self.steps + 1) <= self.lengths[:, None]
        if not bool(torch.isfinite(found[inside]).all()):
            raise CertificateError(
                "The state of the layers is not finite on these sequences: there is nothing to observe. Leave the "
                "observation out, or train with a smaller learning rate or a more stable cell."
            )
        return found

    def jacobians(self, states: Tensor, most: int) -> Tensor:
        """Of at most so many steps, evenly spread over all sequences, ``(samples, m, m)``.

        Args:
            states: What :meth:`trajectory` gave.
            most: How many, 1 or more.
        """
        rows, steps = np.nonzero(np.arange(self.steps) < self.lengths.numpy()[:, None])
        chosen = np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(np.int64))
        row, t = torch.from_numpy(rows[chosen]), torch.from_numpy(steps[chosen])
        dt = None if self.dt is None else self.dt[row, t]
        features, count = self.features[row, t], len(self.directions)
        tangents = torch.eye(count, dtype=torch.float64).expand(len(row), count, count)
        with torch.no_grad():
            return self._pushed(lambda _, at: self._advance(features, dt, at), states[row, t], tangents)[1]

    def blocks(self) -> Iterator[Block]:
        """The layers, member after member, each from the input on."""
        stacks = [stack for stack in self.rnn.stacks if isinstance(stack, StableRNN)]
        first = 0
        for number, stack in enumerate(stacks):
            for depth, cell in enumerate(stack.cells):
                words = [f"member {number}"] * (len(stacks) > 1) + [f"layer {depth}"] * (len(stack.cells) > 1)
                places = []
                for name, size in zip(cell.state_names, cell.state_sizes, strict=True):
                    size = 0 if name in NOT_RECURRENT else size
                    places.append(np.arange(first, first + size))
                    first += size
                yield Block(" ".join(words), cell, tuple(places))

    def _advance(self, features: Tensor, dt: Tensor | None, state: Tensor) -> Tensor:
        column = None if dt is None else dt[:, None]
        return torch.cat(self.rnn.advance(self._weights, features, self.split(state), column), dim=-1)

    def _pushed(self, step: Any, state: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        whole = tangents.new_zeros(len(tangents), self.size, tangents.shape[2])
        whole[:, self.directions] = tangents
        following, pushed = tangent_map(step)(0, state, whole)
        return following, pushed[:, self.directions]


@dataclass(frozen=True)
class Spectra:
    """What Jacobians of single steps are like.

    Attributes:
        eigenvalues: ``(samples, m)``.
        largest: Largest singular value of each, ``(samples,)``.
        smallest: The smallest ones.
        departure: Henrici's departure from normality, ``sqrt(|J|_F^2 - sum |l|^2)``; 0 of a normal matrix.
        step_size: Length of an Euler step; None where there is none.
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
        """The figures as JSON types; docs/evaluation.md says what each means."""
        moduli = np.abs(self.eigenvalues)
        rounding = moduli.shape[1] * FLOAT32_EPSILON
        real = None if self.step_size is None else (np.real(self.eigenvalues) - 1) / self.step_size
        return {
            "samples": len(self.eigenvalues),
            "size": self.eigenvalues.shape[1],
            "spectral_radius": _spread(self.radii),
            "mean_modulus": float(moduli.mean()),
            "share_outside": float((moduli > 1 + rounding).mean()),
            "largest_singular_value": _spread(self.largest),
            "smallest_singular_value": _spread(self.smallest),
            "departure_from_normality": _spread(self.departure),
            "continuous_real_part": None if real is None else _spread(real),
        }


def spectra(jacobians: Tensor, step_size: float | None = None) -> Spectra:
    """Eigenvalues, singular values and departure from normality.

    Args:
        jacobians: ``(samples, m, m)`` float64.
        step_size: Length ``e`` of an Euler step, of which the eigenvalues of ``(J - I) / e`` are told too.
    """
    eigenvalues = torch.linalg.eigvals(jacobians)
    singular = torch.linalg.svdvals(jacobians)
    excess = singular.square().sum(dim=1) - eigenvalues.abs().square().sum(dim=1)
    return Spectra(
        eigenvalues=eigenvalues.numpy(),
        largest=singular[:, 0].numpy(),
        smallest=singular[:, -1].numpy(),
        departure=excess.clamp_min(0).sqrt().numpy(),
        step_size=step_size,
    )


def largest_step_factors(jacobians: Tensor, layers: LayerDynamics, certificate: Certificate) -> list[dict[str, Any]]:
    """By how much single steps stretched a difference at most, layer by layer in the norm of the certificate.

    Returns:
        Rows of ``layer``, ``norm`` and ``factor``, of the layers for which a rate is proved; none for models of
        irregular time, whose steps are not the regular one that a certificate is of.
    """
    if layers.dt is not None:
        return []
    bounds = [bound for stack in certificate.stacks for bound in stack.bounds]
    found = []
    for block, bound in zip(layers.blocks(), bounds, strict=True):
        if bound.norm is not None:
            names = block.cell.state_names
            places = np.concatenate([block.places[names.index(name)] for name in bound.covers])
            own = jacobians[:, places][:, :, places].numpy()
            found.append({"layer": block.place, "norm": bound.norm, "factor": float(_norms(own, bound).max())})
    return found


def certified_radius(layers: LayerDynamics, certificate: Certificate) -> float | None:
    """What is proved of the modulus of every eigenvalue; None where not all of the state is covered."""
    bounds = [bound for stack in certificate.stacks for bound in stack.bounds]
    if layers.dt is not None:
        return None
    for block, bound in zip(layers.blocks(), bounds, strict=True):
        if bound.norm is None or set(block.cell.state_names) - set(bound.covers) - set(NOT_RECURRENT):
            return None
    return certificate.rate


def _norms(jacobians: Array, bound: StepBound) -> Array:
    if bound.norm == "linf":
        weights = np.ones(jacobians.shape[1]) if bound.weights is None else bound.weights
        rows: Array = (np.abs(jacobians) * weights[None, None] / weights[None, :, None]).sum(axis=2).max(axis=1)
        return rows
    if bound.metric is not None:
        jacobians = bound.metric @ jacobians @ np.linalg.inv(bound.metric)
    norms: Array = np.linalg.norm(jacobians, 2, axis=(1, 2))
    return norms


def _inputs(model: SequenceModel, samples: Samples) -> tuple[Tensor, Tensor | None, States, Tensor | None]:
    """What the layers read, how many steps of it count, what scaling and patches hold after these, and their times."""
    x, lengths = torch.from_numpy(samples.x), torch.from_numpy(samples.lengths)
    valid = valid_steps(x, lengths)
    held: States = tuple(model.scaling.mean.new_zeros(len(x), size) for _, size in model.patches.state_roles())
    dt = None
    if model.max_dt is not None:
        dt = torch.ones(x.shape[:2]) if samples.dt is None else torch.from_numpy(samples.dt)
    with torch.no_grad():
        if isinstance(model, SequencePredictor):
            features, held = model.scaling.sequence(x, held, valid)
            return features, None if valid is None else lengths, held, dt
        features, groups, held = model.patches.sequence(x, valid, held)
        return features, groups, held, None if dt is None else model.patches.time(dt, valid)


def _exact(tensor: Tensor) -> Tensor:
    """The numbers of a float32 tensor in float64."""
    exact = tensor.detach()
    if exact.is_complex():
        return exact.to(torch.complex128)
    return exact.double() if exact.is_floating_point() else exact


def _spread(values: Array) -> dict[str, float]:
    return {"mean": float(values.mean()), "least": float(values.min()), "most": float(values.max())}
