"""Trajectories of a model under drawn inputs, beside the bounds of its certificate: an observation, and no proof.

One trajectory of each input sequence starts at the zero state, as invariant balls assume; two more start at drawn
states, which a contraction rate assumes to differ in the state tensors that it covers and in no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.bounds.step_bound import StepBound
from stablernn.certificates.cascade import Cascade
from stablernn.certificates.certificate import Certificate
from stablernn.certificates.input_range import InputRange
from stablernn.data.arrays import Samples
from stablernn.dynamics.spectra import NOT_RECURRENT, Block, LayerDynamics, Spectra, certified_radius, spectra
from stablernn.errors import CertificateError
from stablernn.nn.models import SequenceModel
from stablernn.nn.models.predictor import SequencePredictor
from stablernn.plotting import BLACK, BLUE, GREY, ORANGE, _legend_below, _style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Array = npt.NDArray[Any]

SEQUENCES = 12
"""Input sequences, of each of which three trajectories are computed."""
STEPS = 200
"""Steps of the layers."""
MAX_SAMPLES = 4096
"""Samples of an input sequence, of models whose layers advance after several."""
HELD_STEPS = 12
"""Samples for which half of the sequences hold a corner of the range: constant extremes drive a state the furthest."""
MAX_START = 10.0
"""Largest distance of a drawn start from the origin, in balls that are larger than any state comes to be."""
MAX_JACOBIANS = 64
MAX_STATE_SIZE = 256
"""Length of a state up to which Jacobians are decomposed."""
SEED = 0
_ROUNDING = 1e-9
"""Share of the first distance below which a distance is mostly the rounding of float64."""
_DASHES = (0, (5, 4))
_FAR = 8.0
"""Ratio of a ball's radius to the largest observed state beyond which the ball is not drawn to scale."""
_SMALLEST_SHARE = 1e-12
"""Distances below this are drawn at this: they are mostly the rounding of float64."""


@dataclass(frozen=True)
class DrawnTrajectories:
    """Observations on drawn input sequences.

    Attributes:
        inputs: Description of the inputs.
        norms: By name of a state tensor with a ball, its norm along the trajectories from zero,
            ``(sequences, steps + 1)``.
        plane: Two coordinates of the first of these tensors, or of the whole state if there is none,
            ``(sequences, steps + 1, 2)``.
        distances: Distance of the two drawn starts as a share of the first one, ``(sequences, steps + 1)``; of an
            ensemble the largest of its members.
        norm: Norm in which the distance is measured.
        bound: Proved bound of ``distances``, ``(steps + 1,)``; None if there is none.
        largest_factor: Largest factor by which a single step changed the distance.
        step_rate: Proved bound of that factor; None if there is none.
        spectra: Eigenvalues of the Jacobians along the trajectories from zero; None for a long state.
        radius: Proved bound on the modulus of every eigenvalue; None if there is none.
    """

    inputs: str
    norms: dict[str, Array]
    plane: Array
    distances: Array
    norm: str
    bound: Array | None
    largest_factor: float
    step_rate: float | None
    spectra: Spectra | None
    radius: float | None

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON types; docs/reference/certificate.md explains each."""
        return {
            "note": None,
            "inputs": self.inputs,
            "sequences": len(self.distances),
            "steps": self.distances.shape[1] - 1,
            "seed": SEED,
            "largest_state_norms": {name: float(norms.max()) for name, norms in self.norms.items()},
            "norm": self.norm,
            "largest_step_factor": self.largest_factor,
            "step_factor_bound": self.step_rate,
            "largest_distances": self.distances.max(axis=0).tolist(),
            "distance_bounds": None if self.bound is None else self.bound.tolist(),
            "largest_spectral_radius": None if self.spectra is None else float(self.spectra.radii.max()),
            "spectral_radius_bound": self.radius,
        }


def draw_trajectories(model: SequenceModel, certificate: Certificate, inputs: InputRange | None) -> DrawnTrajectories:
    """Follow a model's layers under drawn inputs.

    Args:
        model: On any device; it is not changed.
        certificate: Bounds to compare with. Starts are drawn within its balls.
        inputs: Range to draw raw inputs from; None for standard normal ones, or tokens of a model that reads tokens.

    Raises:
        CertificateError: If a state is not finite.
    """
    random = np.random.default_rng(SEED)
    samples, description = _draw_inputs(model, inputs, random)
    layers = LayerDynamics(model, samples)
    # An invariant ball is of sequences that start at zero, and so are these.
    states = layers.trajectory()
    blocks = list(layers.blocks())
    pair = _run_pair(layers, [_draw_start(layers, blocks, certificate, random) for _ in range(2)])
    distances, norm, bound = _distances(pair, blocks, certificate)
    jacobian_spectra = None
    if len(layers.directions) <= MAX_STATE_SIZE:
        jacobian_spectra = spectra(layers.jacobians(states, MAX_JACOBIANS), layers.step_size)
    # Flat indices of every state tensor, those of no recurrence included.
    columns = {name: index for block in blocks for name, index in zip(block.names, block.columns, strict=True)}
    plane = columns[certificate.balls[0]["state"]] if certificate.balls else layers.directions.numpy()
    return DrawnTrajectories(
        inputs=description,
        norms={
            ball["state"]: _tensor_norms(states.numpy()[:, :, columns[ball["state"]]], ball["norm"])
            for ball in certificate.balls
        },
        plane=_plane(states.numpy()[:, :, plane]),
        distances=distances,
        norm=norm,
        bound=bound,
        largest_factor=_largest_factor(distances),
        step_rate=_step_rate(certificate),
        spectra=jacobian_spectra,
        radius=certified_radius(layers, certificate),
    )


def _draw_inputs(model: SequenceModel, inputs: InputRange | None, random: np.random.Generator) -> tuple[Samples, str]:
    """Return input sequences in raw units, and their description."""
    time = min(STEPS * model.patches.stride, MAX_SAMPLES)
    lengths = np.full(SEQUENCES, time, dtype=np.int64)
    labels = np.zeros(SEQUENCES, dtype=np.int64)
    if isinstance(model, SequencePredictor) and model.tokens:
        tokens = random.integers(0, model.input_size, (SEQUENCES, time))
        return Samples(tokens, lengths, labels), "tokens drawn uniformly from the vocabulary"  # type: ignore[arg-type]
    shape = (SEQUENCES, time, model.input_size)
    if inputs is None:
        return Samples(random.standard_normal(shape).astype(np.float32), lengths, labels), "standard normal values"
    inputs = inputs.for_features(model.input_size)
    lower, upper = np.array(inputs.lower), np.array(inputs.upper)
    values = random.uniform(lower, upper, shape)
    # (half, holds, features): a corner of the range for each stretch of samples.
    half, holds = SEQUENCES // 2, -(-time // HELD_STEPS)
    corners = np.where(random.random((half, holds, model.input_size)) < 0.5, lower, upper)
    values[:half] = np.repeat(corners, HELD_STEPS, axis=1)[:, :time]
    # Rounding to float32 must not leave the range of which the certificate is.
    rounded = np.clip(values.astype(np.float32), _round_up(lower), -_round_up(-upper))
    return Samples(rounded, lengths, labels), (
        "values within the certified range: half of the sequences uniform at every sample, half at random corners of "
        f"the range, each held for {HELD_STEPS} samples"
    )


def _round_up(values: Array) -> Array:
    """Return the smallest float32 numbers that are not below some float64 numbers."""
    rounded = values.astype(np.float32)
    return np.where(rounded < values, np.nextafter(rounded, np.float32(np.inf)), rounded)


def _draw_start(
    layers: LayerDynamics,
    blocks: Sequence[Block],
    certificate: Certificate,
    random: np.random.Generator,
) -> Tensor:
    """Return states ``(batch, size)`` within the balls; tensors that the rate does not cover are zero."""
    balls = {ball["state"]: ball for ball in certificate.balls}
    start, directions = layers.start().numpy().copy(), layers.directions.numpy()
    for block, bound in zip(blocks, certificate.bounds, strict=True):
        for name, cell_name, indices in zip(block.names, block.cell.state_names, block.indices, strict=True):
            is_covered = cell_name in bound.covers if bound.norm is not None else cell_name not in NOT_RECURRENT
            # A count, or a flag that the sequence has started, must be the same in both states.
            if not len(indices) or not is_covered:
                continue
            start[:, directions[indices]] = _draw_in_ball(balls.get(name), (len(start), len(indices)), random)
    return torch.from_numpy(start)


def _draw_in_ball(ball: dict[str, Any] | None, shape: tuple[int, int], random: np.random.Generator) -> Array:
    """Return rows within a ball, or a ball of radius 1 if there is none."""
    radius = min(1.0 if ball is None else ball["radius"], MAX_START)
    if ball is not None and "lower" in ball:
        lower, upper = np.maximum(ball["lower"], -radius), np.minimum(ball["upper"], radius)
        values: Array = random.uniform(np.minimum(lower, upper), np.maximum(lower, upper), shape)
        return values
    if ball is not None and ball["norm"] == "linf":
        return random.uniform(-radius, radius, shape)
    # The sphere and not the inside of the ball: most of a ball of many dimensions lies near its surface.
    directions = random.standard_normal(shape)
    points: Array = radius * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    return points


def _run_pair(layers: LayerDynamics, starts: Sequence[Tensor]) -> Array:
    """Return the differences ``(batch, steps + 1, m)`` of two states under the same inputs, in recurrent directions."""
    first, second = starts
    differences = [first - second]
    with torch.no_grad():
        for t in range(layers.steps):
            first, second = layers.step(t, first), layers.step(t, second)
            differences.append(first - second)
    stacked = torch.stack(differences, dim=1)[:, :, layers.directions]
    # Starts that are far from zero may overflow where the trajectories from zero do not.
    if not bool(torch.isfinite(stacked).all()):
        raise CertificateError("The state of the layers is not finite from a drawn start; there is nothing to compare.")
    return stacked.numpy()


def _distances(
    differences: Array, blocks: Sequence[Block], certificate: Certificate
) -> tuple[Array, str, Array | None]:
    """Return the relative distances, their norm, and the proved bound, see :class:`DrawnTrajectories`."""
    steps = np.arange(differences.shape[1])
    # Blocks come member after member, as the stacks of the certificate do.
    remaining, shares, bounds = list(blocks), [], []
    for stack in certificate.stacks:
        stack_blocks = [remaining.pop(0) for _ in stack.bounds]
        sizes, rate = _stack_sizes(differences, stack_blocks, stack, is_timed=certificate.max_dt is not None)
        shares.append(sizes / np.maximum(sizes[:, :1], np.finfo(np.float64).tiny))
        # The power of a rate above 1 may overflow; it is no bound to draw then.
        with np.errstate(over="ignore"):
            bounds.append(None if rate is None else np.power(rate, steps))
    norm = certificate.document()["norm"] if all(bound is not None for bound in bounds) else "l2"
    # A rate above 1 is proved, but bounds nothing that anybody would draw.
    is_useful = all(bound is not None and bound[-1] <= 1 + certificate.tolerance * len(steps) for bound in bounds)
    bound = np.max([bound for bound in bounds if bound is not None], axis=0) if is_useful else None
    return np.max(shares, axis=0), norm, bound


def _stack_sizes(
    differences: Array, blocks: Sequence[Block], stack: Cascade, *, is_timed: bool
) -> tuple[Array, float | None]:
    """Return the sizes of differences in the norm of a member's layers, and the factor of a step in it.

    Without such a norm it is the 2-norm of all recurrent coordinates, and the factor None.
    """
    # The weights of several layers are those of steps of one length.
    weights = np.ones(1) if len(stack.bounds) == 1 else None if is_timed else stack.weights()
    if weights is None or any(bound.norm is None for bound in stack.bounds):
        indices = np.concatenate([index for block in blocks for index in block.indices])
        return np.linalg.norm(differences[:, :, indices], axis=2), None
    layer_sizes = []
    for block, bound in zip(blocks, stack.bounds, strict=True):
        layer_sizes.append(_size(differences[:, :, block.covered(bound)], bound))
    sizes: Array = np.max([size / weight for size, weight in zip(layer_sizes, weights, strict=True)], axis=0)
    return sizes, stack.step_rate()


def _size(values: Array, bound: StepBound) -> Array:
    """Return the norm in which a bound is stated, of the last axis."""
    if bound.norm == "linf":
        sizes: Array = np.abs(values if bound.weights is None else values / bound.weights).max(axis=-1)
        return sizes
    sizes = np.linalg.norm(values if bound.metric is None else values @ bound.metric.T, axis=-1)
    return sizes


def _step_rate(certificate: Certificate) -> float | None:
    """Return the factor of a step at regular times."""
    if certificate.max_dt is None:
        return certificate.step_rate()
    return None if certificate.is_deep else certificate.rate


def _largest_factor(distances: Array) -> float:
    # Differences that have faded to rounding would give factors of rounding errors.
    before, after = distances[:, :-1], distances[:, 1:]
    factors = np.where(before > _ROUNDING, after / np.maximum(before, _ROUNDING), 0.0)
    return float(factors.max())


def _tensor_norms(values: Array, norm: str) -> Array:
    """Return the norms of a state tensor along the trajectories, ``(batch, steps + 1)``."""
    norms: Array = np.abs(values).max(axis=2) if norm == "linf" else np.linalg.norm(values, axis=2)
    return norms


def _plane(values: Array) -> Array:
    """Return the two coordinates that vary the most; the second is zero if there is one only."""
    # Over all sequences and steps.
    order = np.argsort(values.reshape(-1, values.shape[2]).var(axis=0))[::-1][:2]
    plane: Array = values[:, :, order]
    return np.concatenate([plane, np.zeros_like(plane)], axis=2)[:, :, :2]


def ball_figure(trajectories: DrawnTrajectories, ball: Mapping[str, Any] | None) -> Figure:
    """Draw the trajectories from the zero state in a plane, and their norm over time, with the proved ball.

    Args:
        trajectories: The observations.
        ball: The first ball of the certificate, to which the plane belongs; None if there is none.
    """
    figure = new_figure(9.6, 4.3)
    plane, norms = figure.subplots(1, 2, width_ratios=(1, 1.35))
    _style(plane, "states, two coordinates")
    for row in trajectories.plane:
        plane.plot(row[:, 0], row[:, 1], color=BLUE, linewidth=0.6, alpha=0.55)
    plane.plot([0], [0], color=BLACK, marker="+", markersize=8)
    largest = _largest_coordinate(trajectories)
    # Balls for rare inputs can be a million times as large as any state that is seen.
    radius = None if ball is None else float(ball["radius"])
    if radius is not None and ball is not None and is_drawn_to_scale(trajectories, ball):
        _draw_ball(plane, ball["norm"], radius)
        largest = max(largest, radius)
    plane.set_xlim(-1.1 * largest, 1.1 * largest)
    plane.set_ylim(-1.1 * largest, 1.1 * largest)
    plane.set_aspect("equal")
    plane.set_xlabel("coordinate with the largest variance")
    plane.set_ylabel("coordinate with the second largest")
    _style(norms, "norm of the state")
    values = trajectories.norms[ball["state"]] if ball is not None else np.linalg.norm(trajectories.plane, axis=2)
    for number, row in enumerate(values):
        norms.plot(row, color=BLUE, linewidth=0.7, alpha=0.6, label=None if number else "observed")
    if radius is not None:
        norms.axhline(radius, color=ORANGE, linestyle=_DASHES, linewidth=1.6, label=f"proved: at most {radius:.4g}")
        # A linear axis up to the radius would flatten the trajectories to a line.
        if radius > _FAR * max(float(values.max()), 1e-6):
            norms.set_yscale("log")
    norms.set_xlabel("step")
    norms.set_ylabel(f"{ball['norm']} norm of {ball['state']}" if ball is not None else "2-norm of both coordinates")
    _legend_below(figure, ncols=2)
    return figure


def forgetting_figure(trajectories: DrawnTrajectories) -> Figure:
    """Draw the distance of two drawn starts under the same inputs over time, with the proved bound."""
    figure = new_figure(9.6, 3.9)
    axes = figure.subplots()
    _style(axes, "distance of two states under the same inputs, as a share of the first distance")
    shares = np.maximum(trajectories.distances, _SMALLEST_SHARE)
    for number, row in enumerate(shares):
        axes.plot(row, color=BLUE, linewidth=0.8, alpha=0.6, label=None if number else "observed")
    if trajectories.bound is not None:
        bound = np.maximum(trajectories.bound, _SMALLEST_SHARE)
        label = f"proved: at most {trajectories.bound[1]:.4g} times per step"
        axes.plot(bound, color=ORANGE, linestyle=_DASHES, linewidth=1.6, label=label)
    axes.axhline(0.01, color=GREY, linewidth=0.8, linestyle=":", label="1 % of the first distance")
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel(f"share ({trajectories.norm} norm)")
    _legend_below(figure, ncols=3)
    return figure


def is_drawn_to_scale(trajectories: DrawnTrajectories, ball: Mapping[str, Any]) -> bool:
    """Return whether a ball is small enough to be drawn around the trajectories."""
    return float(ball["radius"]) <= _FAR * _largest_coordinate(trajectories)


def _largest_coordinate(trajectories: DrawnTrajectories) -> float:
    return max(float(np.abs(trajectories.plane).max()), 1e-6)


def _draw_ball(axes: Axes, norm: str, radius: float) -> None:
    """Draw the projection of a ball onto two coordinates: a disc of the 2-norm, a square of the infinity norm."""
    from matplotlib.patches import Circle, Rectangle

    style: dict[str, Any] = {"fill": False, "edgecolor": ORANGE, "linestyle": _DASHES, "linewidth": 1.6, "zorder": 4}
    if norm == "linf":
        axes.add_patch(Rectangle((-radius, -radius), 2 * radius, 2 * radius, **style))
    else:
        axes.add_patch(Circle((0, 0), radius, **style))
