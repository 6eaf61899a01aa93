"""A whole sequence in about 3 sqrt(time) operations in place of several a step, for linear diagonal recurrences.

Composing steps ``h -> a h + b`` is associative, so that parts of a sequence can be run at once (Martin and Cundy,
"Parallelizing linear recurrent neural nets over sequence length", ICLR 2018). Time is cut into chunks of about
sqrt(time) steps. All chunks run side by side from a state of zero, one step after the other; then the state is carried
from chunk to chunk, and what each chunk's first state adds to its steps is added to them. On a GPU with the package
triton one kernel runs all steps in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from stablernn.buffers import BufferPool, pool_of
from stablernn.cells import StableCell, State
from stablernn.cells._diagonal_recurrence import DiagonalCell
from stablernn.cells.mingru import MinGRUCell, MinLSTMCell
from stablernn.engines.gated_scan import GatedScan, MinGRUGates, MinLSTMGates
from stablernn.engines.select import register_engine
from stablernn.engines.triton.plan import runs_on
from stablernn.transforms import is_transformed

MAX_STEP_BYTES = 1 << 16
"""Size of a step's state beyond which steps run one after the other: they then take longer than it takes to launch
them, and chunks would read and write everything a second time."""

SUMMED_BYTES = 1 << 18
"""Size of the parts in which products of states are summed: they stay in the cache of a core."""

_GATES: dict[type[StableCell], type[MinGRUGates | MinLSTMGates]] = {
    MinGRUCell: MinGRUGates,
    MinLSTMCell: MinLSTMGates,
}
"""Cells whose gates are computed with the scan; a subclass may compute something else."""


class ScanEngine:
    """Runs ``lru``, ``mingru`` and ``minlstm``, whose steps are linear in the state.

    Values and gradients equal those of the loop up to rounding, second derivatives included. While a program transforms
    or records the operations, ``auto`` takes the loop.
    """

    name = "scan"
    takes_drive = True

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        return (
            isinstance(cell, DiagonalCell)
            and drive.dtype in (torch.float32, torch.float64)
            and not timed
            and not torch.is_autocast_enabled(drive.device.type)
            and not is_transformed()
        )

    def run_inputs(
        self,
        cell: StableCell,
        weights: tuple[Tensor, ...],
        x: Tensor,
        state: State,
        valid: Tensor | None,
        *,
        every_output: bool = True,
    ) -> tuple[Tensor | None, State]:
        gates = _GATES.get(type(cell))
        # A mode such as FakeTensorMode replaces torch's functions, and its tensors may have no memory.
        has_mode = torch._C._len_torch_dispatch_stack() > 0
        if gates is None or x.device.type != "cpu" or has_mode or x.numel() == 0:
            drive = cell.drive(x.transpose(0, 1).contiguous()).transpose(0, 1)
            return self.run(cell, weights, drive, state, valid, every_output=every_output)
        assert isinstance(cell, MinGRUCell | MinLSTMCell)
        every_state = every_output or valid is not None
        tensors = x, cell.weight_ih, cell.bias_ih, state[0]
        compute = partial(_gated_scan, cell, every_state)
        states = cast("Tensor", GatedScan.apply(pool_of(cell), gates, compute, every_state, *tensors))  # type: ignore[no-untyped-call]
        if not every_state:
            return None, (states,)
        return _result(cell, weights, states[:, :, None], None, state, valid, every_output=every_output)

    def run(
        self,
        cell: StableCell,
        weights: tuple[Tensor, ...],
        drive: Tensor,
        state: State,
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> tuple[Tensor | None, State]:
        (result,) = self.run_ensemble([cell], [weights], [drive], [state], valid, every_output=every_output)
        return result

    def run_ensemble(
        self,
        cells: list[StableCell],
        weights: list[tuple[Tensor, ...]],
        drives: list[Tensor],
        states: list[State],
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> list[tuple[Tensor | None, State]]:
        # (time, batch, d): each step reads one block of memory.
        steps = [drive.transpose(0, 1) for drive in drives]
        members = [cell for cell in cells if isinstance(cell, DiagonalCell)]
        recurrences = [
            cell.diagonal_recurrence(matrices, step)
            for cell, matrices, step in zip(members, weights, steps, strict=True)
        ]
        # Units do not see each other, so that those of all members are one state.
        first = _join([cell.recurrent_state(state) for cell, state in zip(members, states, strict=True)])
        decay = _join([recurrence.decay for recurrence in recurrences])
        increment = _join([recurrence.increment for recurrence in recurrences])
        h = cast("Tensor", LinearScan.apply(pool_of(cells[0]), decay, increment, first, False))  # type: ignore[no-untyped-call]
        units = first.shape[-1] // len(cells)
        return [
            _result(cell, matrices, member_h, recurrence.skip, state, valid, every_output=every_output)
            for cell, matrices, member_h, recurrence, state in zip(
                members, weights, torch.split(h, units, dim=-1), recurrences, states, strict=True
            )
        ]


def _gated_scan(cell: MinGRUCell | MinLSTMCell, every_state: bool, inputs: list[Tensor | None]) -> list[Tensor]:
    """Return what :class:`GatedScan` returns, by operations with second derivatives."""
    x, weight, bias, first = cast("list[Tensor]", inputs)
    projection = nn.functional.linear(x.transpose(0, 1), weight, bias)
    retention, increment = (part[:, :, None] for part in cell.gate(projection))
    h = cast("Tensor", LinearScan.apply(pool_of(cell), retention, increment, first[:, None], False))[:, :, 0]  # type: ignore[no-untyped-call]
    return [h if every_state else h[-1]]


def _join(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim=-1)


def _result(
    cell: DiagonalCell,
    weights: tuple[Tensor, ...],
    h: Tensor,
    skip: Tensor | None,
    state: State,
    valid: Tensor | None,
    *,
    every_output: bool,
) -> tuple[Tensor | None, State]:
    """Return outputs and last state of a cell from its recurrent state after every step.

    Args:
        cell: The cell.
        weights: Its matrices.
        h: ``(time, batch, parts, units)``, as if no sequence had padding.
        skip: ``(time, batch, d)``, or None.
        state: The state before the first step.
        valid: ``(batch, time)``, or None.
        every_output: Whether the outputs of all steps are needed.
    """
    if valid is None:
        last = cell.state_after(weights, h[-1], None if skip is None else skip[-1])
    else:
        lengths = valid.sum(dim=1)
        ends, rows = (lengths - 1).clamp(min=0), torch.arange(len(lengths), device=h.device)
        after = cell.state_after(weights, h[ends, rows], None if skip is None else skip[ends, rows])
        has_steps = (lengths > 0)[:, None]
        last = tuple(torch.where(has_steps, new, old) for new, old in zip(after, state, strict=True))
    if not every_output:
        return None, last
    outputs = cell.state_after(weights, h, skip)[0].transpose(0, 1)
    if valid is not None:
        # Over padding the state is held.
        outputs = torch.where(valid[..., None], outputs, last[0][:, None])
    return outputs, last


class LinearScan(torch.autograd.Function):
    """The states ``h_t = decay_t .* h_{t-1} + increment_t``, ``(time, batch, parts, units)``.

    Args:
        pool: Where the buffer of the states comes from.
        decay: ``(parts, units)``, or of real units ``(time, batch, 1, units)``.
        increment: ``(time, batch, parts, units)``.
        first: The state before the first step, ``(batch, parts, units)``.
        reverse: Whether the recurrence runs from the last time step to the first, ``h_t`` from ``h_{t+1}``.
    """

    @staticmethod
    def forward(ctx: Any, pool: BufferPool, decay: Tensor, increment: Tensor, first: Tensor, reverse: bool) -> Tensor:
        shape = increment.shape
        states = pool.take(increment, *shape) if increment.device.type == "cpu" else increment.new_empty(shape)
        if has_kernel(increment):
            # Here and not above: the import of triton takes a second.
            from stablernn.engines.triton.diagonal_scan import run_scan

            run_scan(states, decay, increment, first, reverse=reverse)
        else:
            scan(states, decay, increment, first, reverse=reverse)
        ctx.pool, ctx.reverse = pool, reverse
        ctx.save_for_backward(decay, first, states)
        return states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients whose graph autograd can differentiate again."""
        (grad,) = grads
        decay, first, states = ctx.saved_tensors
        reverse: bool = ctx.reverse
        is_constant = decay.dim() == 2
        conjugate = _conjugate(decay) if is_constant else decay
        # h_t reaches the loss by itself and by the step after it, through the decay of that step.
        grad_decay: Tensor | None = None
        if is_constant and has_kernel(grad) and not torch.is_grad_enabled():
            from stablernn.engines.triton.diagonal_scan import run_scan_backward

            g = torch.empty_like(grad, memory_format=torch.contiguous_format)
            grad_decay = run_scan_backward(g, conjugate, grad, states, first, reverse=not reverse)
            return None, grad_decay, g, _product(g[-1] if reverse else g[0], conjugate), None
        shifted = conjugate if is_constant else _shift(decay, torch.zeros_like(decay[0]), backward=reverse)
        g = cast("Tensor", LinearScan.apply(ctx.pool, shifted, grad, torch.zeros_like(first), not reverse))  # type: ignore[no-untyped-call]
        start = g[-1] if reverse else g[0]
        if ctx.needs_input_grad[1] and is_constant:
            earlier, later = (states[1:], g[:-1]) if reverse else (states[:-1], g[1:])
            grad_decay = _sum_of_products(start[None], first[None]) + _sum_of_products(later, earlier)
        elif ctx.needs_input_grad[1]:
            grad_decay = g * _shift(states, first, backward=not reverse)
        start_decay = conjugate if is_constant else decay[-1 if reverse else 0]
        return None, grad_decay, g, _product(start, start_decay), None


def has_kernel(tensor: Tensor) -> bool:
    """Return whether a kernel of Triton runs a recurrence of such states: on a GPU, where the package is installed.

    A mode such as FakeTensorMode replaces torch's functions, and its tensors may have no memory.
    """
    has_memory = tensor.is_cuda and tensor.numel() > 0 and torch._C._len_torch_dispatch_stack() == 0
    return has_memory and runs_on(tensor.device)


def _conjugate(values: Tensor) -> Tensor:
    """Return the complex conjugates of ``(..., parts, units)``."""
    if values.shape[-2] == 1:
        return values
    # A tensor of the factors 1 and -1 would be copied to a GPU each time.
    return torch.cat([values[..., :1, :], -values[..., 1:, :]], dim=-2)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of ``(..., parts, units)``, complex where there are two parts."""
    if a.shape[-2] == 1:
        return a * b
    (a_real, a_imaginary), (b_real, b_imaginary) = a.unbind(-2), b.unbind(-2)
    return torch.stack([a_real * b_real - a_imaginary * b_imaginary, a_real * b_imaginary + a_imaginary * b_real], -2)


def _sum_of_products(gradients: Tensor, states: Tensor) -> Tensor:
    """Return the products of gradients and conjugate states, summed over time and batch, ``(parts, units)``.

    Args:
        gradients: ``(time, batch, parts, units)``.
        states: The same.
    """
    steps = max(1, SUMMED_BYTES // max(1, states[:1].numel() * states.element_size()))
    total = states.new_zeros(states.shape[-2:])
    for g, h in zip(torch.split(gradients, steps), torch.split(states, steps), strict=True):
        real = (g * h).sum(dim=(0, 1))
        if len(total) == 1:
            total = total + real
            continue
        imaginary = g.select(-2, 1) * h.select(-2, 0) - g.select(-2, 0) * h.select(-2, 1)
        total = total + torch.stack([real.sum(dim=0), imaginary.sum(dim=(0, 1))])
    return total


def _add_product(increment: Tensor, decay: Tensor, state: Tensor, out: Tensor) -> None:
    """Write ``increment + decay .* state`` into ``out``, which may be the increment but not the state."""
    if state.shape[-2] == 1:
        torch.addcmul(increment, decay, state, out=out)
        return
    real, imaginary = decay.unbind(-2)
    torch.addcmul(increment, real.unsqueeze(-2), state, out=out)
    out.select(-2, 0).addcmul_(imaginary, state.select(-2, 1), value=-1)
    out.select(-2, 1).addcmul_(imaginary, state.select(-2, 0))


def _shift(values: Tensor, end: Tensor, *, backward: bool) -> Tensor:
    """Return the values of the next time step at each, or with ``backward`` of the step before; ``end`` has no such."""
    return torch.cat([end[None], values[:-1]] if backward else [values[1:], end[None]])


def scan(states: Tensor, decay: Tensor, increment: Tensor, first: Tensor, *, reverse: bool) -> None:
    """Write the states after every step into ``states``; see :class:`LinearScan`."""
    time, is_constant = len(increment), decay.dim() == 2
    length, count = chunk_sizes(time, first.numel() * first.element_size())
    remainder = time - length * count
    last = first
    if count:
        part = slice(remainder, time) if reverse else slice(time - remainder)
        chunks = (count, length)
        last = _scan_chunks(
            torch.unflatten(states[part], 0, chunks),
            decay if is_constant else torch.unflatten(decay[part], 0, chunks),
            torch.unflatten(increment[part], 0, chunks),
            first,
            reverse=reverse,
        )
    for index in range(remainder - 1, -1, -1) if reverse else range(time - remainder, time):
        _add_product(increment[index], decay if is_constant else decay[index], last, out=states[index])
        last = states[index]


def _scan_chunks(states: Tensor, decay: Tensor, increment: Tensor, first: Tensor, *, reverse: bool) -> Tensor:
    """Run chunks of time, ``(count, length, batch, parts, units)``, side by side; return the state after the last."""
    (count, length), is_constant = states.shape[:2], decay.dim() == 2
    order = range(length - 1, -1, -1) if reverse else range(length)
    products = _powers(decay, length, reverse=reverse) if is_constant else torch.empty_like(decay)
    before = order[0]
    states[:, before] = increment[:, before]
    if not is_constant:
        products[:, before] = decay[:, before]
    for index in order[1:]:
        step_decay = decay if is_constant else decay[:, index]
        _add_product(increment[:, index], step_decay, states[:, before], out=states[:, index])
        if not is_constant:
            torch.mul(step_decay, products[:, before], out=products[:, index])
        before = index
    starts, state = first.new_empty(count, 1, *first.shape), first
    for chunk in range(count - 1, -1, -1) if reverse else range(count):
        starts[chunk, 0] = state
        state = torch.empty_like(first)
        chunk_decay = products[before] if is_constant else products[chunk, before]
        _add_product(states[chunk, before], chunk_decay, starts[chunk, 0], out=state)
    _add_product(states, products, starts, out=states)
    return state


def _powers(decay: Tensor, length: int, *, reverse: bool) -> Tensor:
    """Return the products of the decays up to each step of a chunk, ``(length, 1, parts, units)``."""
    if decay.shape[0] == 1:
        powers = decay.expand(length, -1, -1).cumprod(dim=0)
    else:
        parts = torch.complex(*decay).expand(length, -1).cumprod(dim=0)
        powers = torch.stack([parts.real, parts.imag], dim=1)
    return (powers.flip(0) if reverse else powers)[:, None]


def chunk_sizes(time: int, step_bytes: int) -> tuple[int, int]:
    """Return the steps of a chunk and the number of chunks, so that few operations remain; no chunks where none help.

    Args:
        time: Steps of the sequence; those that fill no chunk run one after the other.
        step_bytes: Size of the state of one step.
    """
    if step_bytes > MAX_STEP_BYTES:
        return 0, 0
    # A chunk's step, the two operations that carry the state from chunk to chunk, and a step outside of chunks.
    costs = {
        (length, time // length): length + 2 * (time // length) + time % length
        for length in range(2, 2 * int(time**0.5) + 2)
        if time // length > 1
    }
    best = min(costs, key=costs.__getitem__, default=(0, 0))
    return best if costs.get(best, time) + 4 < time else (0, 0)


register_engine(ScanEngine())
