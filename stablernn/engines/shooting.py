"""Chunks of a sequence side by side, for cells that forget: multiple shooting.

A sequence is cut into chunks, and all of them run at once, each from a guess of its first state. The end of each chunk
is the next guess for the start of the one after it. Where the cell contracts, a wrong start is forgotten within a
chunk, so that a few such sweeps leave the states that one step after the other gives; the gradients by the starts are
found in the same way, from the last chunk to the first. A sweep takes as many operations as one chunk has steps.

This is the fixed-point iteration of multiple shooting (Bock and Plitt, IFAC 1984) and of the parareal method (Lions,
Maday, Turinici, 2001) without a coarse model. Newton's method on all states (DEER: Lim and others, ICLR 2024; ELK:
Gonzalez and others, NeurIPS 2024) also converges where chunks do not contract, but it multiplies and keeps an N x N
matrix for each step, which for 64 units and 65,536 steps is one gigabyte a sequence.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakSet

import torch
from torch import Tensor

from stablernn.cells import StableCell, State, Weights
from stablernn.engines.base import (
    Engine,
    InputEngine,
    LoopEngine,
    Result,
    register_engine,
    register_missing,
    select_engine,
)
from stablernn.errors import ConfigError
from stablernn.transforms import is_transformed

_LOG = logging.getLogger("stablernn.engines")

LEAST_CHUNK = 64
"""Steps of the shortest chunk: most cells have forgotten nothing earlier."""
MOST_CHUNKS = 256
"""Chunks of a long sequence: more rows make a step slower."""
LONGER = 4
"""Factor by which chunks grow where they do not shrink a change of their start enough."""
MOST_SWEEPS = 8
"""Sweeps, predicted or taken, beyond which steps run one after the other."""
_DIGITS = 16.0
"""Logarithm of the accuracy of float32, about."""
_PRECISION = 16.0
"""Change of the states of the last sweep, in machine epsilons of the largest."""


@dataclass(frozen=True)
class Convergence:
    """The convergence of the sweeps of a pass.

    Attributes:
        contraction: Factor by which a chunk shrinks a change of its start, measured by the second sweep.
        predicted: Sweeps that it predicts.
        sweeps: Sweeps that were done.
        is_converged: False if there would be too many.
    """

    contraction: float
    predicted: int
    sweeps: int
    is_converged: bool

    def would_converge(self, factor: int) -> bool:
        """Return whether chunks that are longer by a factor would converge, if they shrink changes as much a step."""
        return 0 < self.contraction < 1 and -math.log(self.contraction) * factor * MOST_SWEEPS > _DIGITS


class ShootingEngine:
    """Runs any cell on long sequences; ``auto`` does not take it.

    Values and gradients equal those of the other engines up to rounding. Where a chunk does not shrink a change of its
    start enough, or the sequence is shorter than two chunks, steps run one after the other by another engine, and a
    warning says so once for each cell. There is no second derivative.
    """

    name = "shooting"

    def __init__(self) -> None:
        self._reported: WeakSet[StableCell] = WeakSet()

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        return not timed and not is_transformed()

    def run(
        self,
        cell: StableCell,
        weights: Weights,
        drive: Tensor,
        state: State,
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> Result:
        engine, time = _engine_of_chunks(cell, drive), drive.shape[1]
        length = max(LEAST_CHUNK, time // MOST_CHUNKS)
        chunks, convergence, starts = None, None, state
        while 2 * length <= time:
            chunks = _Chunks(cell, engine, length, time // length, valid)
            with torch.no_grad():
                starts, convergence = chunks.find_starts(weights, drive, state)
            if convergence.is_converged or not convergence.would_converge(LONGER):
                break
            length *= LONGER
        if chunks is None or convergence is None or not convergence.is_converged:
            self._report(cell, engine, time, chunks, convergence)
            return engine.run(cell, weights, drive, state, valid, every_output=every_output)
        self._report(cell, engine, time, chunks, convergence)
        outputs, *last = cast(
            "tuple[Tensor, ...]",
            Shooting.apply(chunks, starts, every_output, len(state), drive, *state, *weights),  # type: ignore[no-untyped-call]
        )
        if chunks.steps == time:
            return outputs if every_output else None, tuple(last)
        valid_rest = None if valid is None else valid[:, chunks.steps :]
        tail_outputs, end = engine.run(
            cell, weights, drive[:, chunks.steps :], tuple(last), valid_rest, every_output=every_output
        )
        return None if tail_outputs is None else torch.cat([outputs, tail_outputs], dim=1), end

    def _report(
        self, cell: StableCell, engine: Engine, time: int, chunks: _Chunks | None, convergence: Convergence | None
    ) -> None:
        """Say once for each cell how its sweeps converged."""
        if cell in self._reported:
            return
        self._reported.add(cell)
        if chunks is None or convergence is None:
            _LOG.warning(
                f"The engine 'shooting' leaves '{cell.key}' to '{engine.name}': it needs {2 * LEAST_CHUNK} steps or "
                f"more, got {time}. A layer takes one step for each patch of samples: model.patch_stride says how many."
            )
            return
        shrinks = f"a chunk of {chunks.length} steps shrinks a change of its start to {convergence.contraction:.1e}"
        if convergence.is_converged:
            _LOG.info(
                f"The engine 'shooting' runs {chunks.count} chunks of '{cell.key}' at once: {shrinks}, which predicts "
                f"{convergence.predicted} sweeps; there were {convergence.sweeps}."
            )
        else:
            _LOG.warning(
                f"The engine 'shooting' leaves '{cell.key}' to '{engine.name}': {shrinks}, so that more than "
                f"{MOST_SWEEPS} sweeps are needed. Certified training keeps cells contracting (--certified)."
            )


def _engine_of_chunks(cell: StableCell, drive: Tensor) -> Engine:
    """Return the engine that ``auto`` takes, of those that take drives; the loop runs any cell."""
    engine = select_engine("auto", cell, drive)
    return LoopEngine() if isinstance(engine, InputEngine) and not engine.takes_drive else engine


class _Chunks:
    """The chunks of sequences, as rows of a larger batch.

    Args:
        cell: The cell.
        engine: The engine that runs the rows.
        length: Steps of a chunk.
        count: Chunks of a sequence.
        valid: ``(batch, time)``, as for :meth:`Engine.run`; further steps belong to no chunk, as for all arguments.
    """

    def __init__(self, cell: StableCell, engine: Engine, length: int, count: int, valid: Tensor | None) -> None:
        self.cell = cell
        self.engine = engine
        self.length = length
        self.count = count
        self.steps = length * count
        valid = None if valid is None else valid[:, : self.steps]
        self.valid = None if valid is None else self.rows(valid[..., None])[..., 0]
        # (batch,), the chunk with the last step of each sequence.
        self.last_chunk = None if valid is None else ((valid.sum(dim=1) - 1).clamp(min=0) // length)

    def rows(self, sequences: Tensor) -> Tensor:
        """Return ``(count * batch, length, d)`` of ``(batch, time, d)``, time first in memory."""
        batch, _, size = sequences.shape
        parts = sequences[:, : self.steps].reshape(batch, self.count, self.length, size).permute(2, 1, 0, 3)
        return parts.reshape(self.length, self.count * batch, size).transpose(0, 1)

    def sequences(self, rows: Tensor) -> Tensor:
        """Return ``(batch, count * length, d)`` of ``(count * batch, length, d)``."""
        return torch.unflatten(rows, 0, (self.count, -1)).transpose(0, 1).flatten(1, 2)

    def run(self, weights: Weights, drives: Tensor, starts: State, *, every_output: bool) -> Result:
        """Run all chunks from their starts; ends and starts are ``(count, batch, size)``."""
        state = tuple(tensor.flatten(0, 1) for tensor in starts)
        outputs, ends = self.engine.run(self.cell, weights, drives, state, self.valid, every_output=every_output)
        return outputs, tuple(torch.unflatten(tensor, 0, (self.count, -1)) for tensor in ends)

    def last(self, ends: State) -> State:
        """Return the state after the last step of each sequence."""
        if self.last_chunk is None:
            return tuple(tensor[-1] for tensor in ends)
        rows = torch.arange(len(self.last_chunk), device=self.last_chunk.device)
        return tuple(tensor[self.last_chunk, rows] for tensor in ends)

    def is_followed(self, like: Tensor) -> Tensor:
        """Return which chunks but the last have steps after them, ``(count - 1, batch, 1)``."""
        if self.last_chunk is None:
            return torch.ones_like(like[:-1, :, :1], dtype=torch.bool)
        return (torch.arange(self.count - 1, device=like.device)[:, None] < self.last_chunk)[..., None]

    def find_starts(self, weights: Weights, drive: Tensor, state: State) -> tuple[State, Convergence]:
        """Return the first state of every chunk, ``(count, batch, size)``, and how the sweeps converged."""
        drives = self.rows(drive)
        starts = tuple(torch.cat([tensor[None], tensor.new_zeros(self.count - 1, *tensor.shape)]) for tensor in state)
        is_followed = self.is_followed(starts[0])

        def sweep(starts: State) -> State:
            _, ends = self.run(weights, drives, starts, every_output=False)
            return tuple(
                torch.cat([start[:1], torch.where(is_followed, end[:-1], start[1:])])
                for start, end in zip(starts, ends, strict=True)
            )

        return iterate(sweep, starts)


def iterate(sweep: Callable[[State], State], values: State) -> tuple[State, Convergence]:
    """Repeat a contracting map until its values change no more.

    Args:
        sweep: The map.
        values: Where it begins.

    Returns:
        The values, and how they converged: given up where the first changes predict more than :data:`MOST_SWEEPS`.
    """
    changes: list[float] = []
    contraction, predicted = 0.0, 1
    while len(changes) < MOST_SWEEPS:
        new = sweep(values)
        changes.append(_largest([a - b for a, b in zip(new, values, strict=True)]))
        values, size = new, _largest(new)
        tolerance = _PRECISION * torch.finfo(values[0].dtype).eps * size
        if not math.isfinite(size):
            break
        if len(changes) == 2:
            contraction = changes[1] / changes[0] if changes[0] else 0.0
            predicted = 2 + _sweeps_to(tolerance, changes[1], contraction)
            if predicted > MOST_SWEEPS:
                break
        if changes[-1] <= tolerance:
            return values, Convergence(contraction, predicted, len(changes), is_converged=True)
    return values, Convergence(contraction, predicted, len(changes), is_converged=False)


def _sweeps_to(tolerance: float, change: float, contraction: float) -> int:
    """Return the sweeps after which a change that shrinks by a factor is within a tolerance."""
    if change <= tolerance:
        return 0
    if contraction >= 1 or tolerance == 0:
        return MOST_SWEEPS
    return math.ceil(math.log(tolerance / change) / math.log(contraction))


def _largest(tensors: Sequence[Tensor]) -> float:
    return max(float(tensor.abs().max()) for tensor in tensors)


class Shooting(torch.autograd.Function):
    """All chunks from starts that have converged, and the gradients through the starts.

    Args:
        chunks: The chunks.
        starts: From :meth:`_Chunks.find_starts`.
        every_output: Whether the outputs of all steps are needed.
        state_count: Tensors of the state.
        tensors: The drive, the state before the first step, the weights.

    Returns:
        The outputs, ``(batch, time, hidden)``, empty unless they are needed, and the last state.
    """

    @staticmethod
    def forward(
        ctx: Any, chunks: _Chunks, starts: State, every_output: bool, state_count: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        drive, weights = tensors[0], tensors[1 + state_count :]
        needed = ctx.needs_input_grad[4:]
        is_training = any(needed)
        with torch.set_grad_enabled(is_training):
            leaves = [tensor.detach().requires_grad_(is_training) for tensor in (drive, *weights)]
            first = tuple(start.detach().requires_grad_(is_training) for start in starts)
            outputs, ends = chunks.run(tuple(leaves[1:]), chunks.rows(leaves[0]), first, every_output=every_output)
            last = chunks.last(ends)
            results = [] if outputs is None else [chunks.sequences(outputs)]
        ctx.chunks, ctx.state_count = chunks, state_count
        ctx.graph = (leaves, first, results, ends, last) if is_training else None
        plain = [result.detach() for result in [*results, *last]]
        return tuple(plain) if every_output else (drive.new_empty(0), *plain)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # With create_graph=True.
        if torch.is_grad_enabled():
            raise ConfigError("The engine 'shooting' has no second derivative; take engine='loop' for one.")
        chunks: _Chunks = ctx.chunks
        leaves, first, results, ends, last = ctx.graph
        wanted = [*grads[:1], *grads[1:]] if results else list(grads[1:])
        is_followed = chunks.is_followed(first[0])

        def gradients(inputs: Sequence[Tensor], by_starts: State, *, keep: bool) -> tuple[Tensor, ...]:
            # The gradient by a chunk's end is that by the start of the next one.
            end_grads = [torch.cat([g[1:] * is_followed, torch.zeros_like(g[:1])]) for g in by_starts]
            return torch.autograd.grad(
                [*results, *last, *ends], inputs, [*wanted, *end_grads], retain_graph=keep, materialize_grads=True
            )

        by_starts, convergence = iterate(
            lambda values: gradients(first, values, keep=True), tuple(torch.zeros_like(start) for start in first)
        )
        if not convergence.is_converged:
            # As many sweeps as there are chunks give the gradient in any case.
            for _ in range(chunks.count):
                by_starts = gradients(first, by_starts, keep=True)
        by_drive, *others = gradients([leaves[0], *first, *leaves[1:]], by_starts, keep=False)
        by_state, by_weights = others[: ctx.state_count], others[ctx.state_count :]
        ctx.graph = None
        return None, None, None, None, by_drive, *(g[0] for g in by_state), *by_weights


register_engine(ShootingEngine(), auto_devices=())
register_missing(
    "newton",
    "There is no engine 'newton': Newton's method on all states keeps a matrix for each step. The engine that runs "
    "long sequences in parallel is 'shooting'.",
)
