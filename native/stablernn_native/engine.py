"""The training engine ``native``: the engine ``fused`` with compiled steps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from stablernn.cells import StableCell
from stablernn.cells._step_form import Family, StepForm
from stablernn.engines.fused import FusedEngine
from stablernn.engines.fused_families import FusedSteps, PlainSteps, ResidualSteps, SharedGateSteps, TwoStageSteps
from stablernn_native.bindings import (
    FAMILIES,
    FLOAT32,
    FLOAT64,
    MIN_THREAD_WORK,
    NONLINEARITIES,
    Call,
    Gradient,
    Rows,
    check,
    current_path,
    load_kernels,
    path_number,
    run_parts,
)

BLOCK_ROWS = 8
"""Threads share out multiples of this number of rows: a tile of the widest vectors."""
GRADIENT_PATHS = ("avx2", "avx512")
"""Paths whose gradients of matrices were measured to be faster than torch's product."""
MAX_STACKED_STATES = 1 << 15
"""Numbers in all states of one member up to which an ensemble runs as one. The kernels run its members one after the
other in any case: what is saved is the time around them, what it costs is to gather their drives."""


class _Matrices(NamedTuple):
    """The packed matrices of one cell and its bias, which a call refers to by address."""

    recurrent: Tensor
    linear: Tensor | None
    bias: Tensor | None


class NativeSteps(FusedSteps):
    """The steps of one family by the kernels.

    The matrices are packed when they are first used: forward as they are, backward transposed. The members of an
    ensemble run one after the other.
    """

    def __init__(self, form: StepForm) -> None:
        super().__init__(form)
        tensors = [tensor for tensor in (form.recurrent, form.linear, form.bias) if tensor is not None]
        if any(tensor.dtype != form.recurrent.dtype for tensor in tensors):
            raise TypeError(f"The matrices of a step have the same dtype, got {[tensor.dtype for tensor in tensors]}.")
        path = current_path()
        self._path = path_number(path)
        self._adds_gradients = path in GRADIENT_PATHS
        self._packed: dict[bool, list[_Matrices]] = {}

    def forward(
        self, states: Tensor, drives: Tensor, lengths: float | Tensor, saved: Sequence[Tensor], substeps: int
    ) -> None:
        if not drives.dtype == states.dtype == self.recurrent.dtype:
            raise TypeError(
                f"Drives, states and matrices have the same dtype, got {drives.dtype}, {states.dtype} and "
                f"{self.recurrent.dtype}."
            )
        count = len(drives) * substeps
        keeps_states = len(states) == count + 1
        for member, matrices in enumerate(self._members(transposed=False)):
            states_of, drives_of = part_of_member(states, member), part_of_member(drives, member)
            call = self._call(matrices, states_of[0], count, lengths, substeps)
            call.drives = rows_of(drives_of)
            call.first = rows_of(states_of[:1])
            call.last = rows_of(states_of[count % len(states)][None])
            if keeps_states:
                call.states = rows_of(states_of[1:])
            for index, buffer in enumerate(saved):
                # One slot means that nothing needs to be kept.
                if len(buffer) == count:
                    call.saved[index] = rows_of(part_of_member(buffer, member))
            run(load_kernels().srnn_forward, call)

    def backward(
        self,
        g: Tensor,
        lengths: float | Tensor,
        saved: Sequence[Tensor],
        arguments: Sequence[Tensor],
        velocities: Sequence[Tensor],
        outputs: Tensor | None,
        substeps: int,
    ) -> None:
        # Gradients that autograd made by expanding or transposing have no contiguous rows.
        gradient = g if has_rows(g) else g.contiguous()
        if outputs is not None and not has_rows(outputs):
            outputs = outputs.contiguous()
        for member, matrices in enumerate(self._members(transposed=True)):
            gradient_of = part_of_member(gradient[None], member)
            call = self._call(matrices, gradient_of[0], len(arguments[0]), lengths, substeps)
            call.first = call.last = rows_of(gradient_of)
            for field, buffers in ((call.saved, saved), (call.arguments, arguments)):
                for index, buffer in enumerate(buffers):
                    field[index] = rows_of(part_of_member(buffer, member))
            if self.linear is not None:
                for index, buffer in enumerate(velocities):
                    call.velocities[index] = rows_of(part_of_member(buffer, member))
            if outputs is not None:
                outputs_of = part_of_member(outputs, member)
                call.outputs = rows_of(outputs_of)
            run(load_kernels().srnn_backward, call)
        if gradient is not g:
            g.copy_(gradient)

    def add_gradient(self, total: Tensor, gradient: Tensor, states: Tensor) -> None:
        if not self._adds_gradients:
            super().add_gradient(total, gradient, states)
            return
        for member in range(len(total) if total.dim() == 3 else 1):
            total_of = total[member] if total.dim() == 3 else total
            by, x = part_of_member(gradient, member), part_of_member(states, member)
            call = Gradient(
                path=self._path,
                dtype=_dtype(total),
                outputs=by.shape[-1],
                inputs=x.shape[-1],
                rows=by.shape[1],
                steps=len(by),
                by=rows_of(by),
                x=rows_of(x),
                sums=total_of.data_ptr(),
            )
            run_gradient(call)

    def _call(self, matrices: _Matrices, like: Tensor, steps: int, lengths: float | Tensor, substeps: int) -> Call:
        """Return a call with all but the buffers."""
        call = Call(
            path=self._path,
            dtype=_dtype(like),
            family=FAMILIES[self.form.family],
            nonlinearity=NONLINEARITIES[self.form.nonlinearity],
            hidden=like.shape[-1],
            rows=len(like),
            steps=steps,
            substeps=substeps,
            recurrent=matrices.recurrent.data_ptr(),
            linear=None if matrices.linear is None else matrices.linear.data_ptr(),
            bias=None if matrices.bias is None else matrices.bias.data_ptr(),
        )
        if isinstance(lengths, Tensor):
            call.lengths = rows_of(lengths)
        else:
            call.step_size = lengths
        return call

    def _members(self, *, transposed: bool) -> list[_Matrices]:
        """Return the matrices of the cell, or of each member of an ensemble, as the kernels read them."""
        if transposed not in self._packed:
            form = self.form
            is_ensemble = form.recurrent.dim() == 3
            count = len(form.recurrent) if is_ensemble else 1
            packed = []
            for member in range(count):
                recurrent, linear, bias = (
                    tensor[member] if is_ensemble and tensor is not None else tensor
                    for tensor in (form.recurrent, form.linear, form.bias)
                )
                assert recurrent is not None
                packed.append(
                    _Matrices(
                        self._pack(recurrent, transposed),
                        None if linear is None else self._pack(linear, transposed),
                        None if bias is None else bias.contiguous(),
                    )
                )
            self._packed[transposed] = packed
        return self._packed[transposed]

    def _pack(self, matrix: Tensor, transposed: bool) -> Tensor:
        hidden, dtype = len(matrix), _dtype(matrix)
        packed = matrix.new_empty(load_kernels().srnn_packed_size(self._path, dtype, hidden))
        row_stride, column_stride = matrix.stride()[::-1] if transposed else matrix.stride()
        check(
            load_kernels().srnn_pack(
                self._path, dtype, hidden, matrix.data_ptr(), row_stride, column_stride, packed.data_ptr()
            )
        )
        return packed


class NativePlainSteps(NativeSteps, PlainSteps):
    """``h <- f(K h + d)``."""


class NativeResidualSteps(NativeSteps, ResidualSteps):
    """``h <- h + e (A h + f(K h + d))``."""


class NativeTwoStageSteps(NativeSteps, TwoStageSteps):
    """``h <- h + e v(h + (e / 2) v(h))`` with ``v(h) = A h + f(K h + d)``."""


class NativeSharedGateSteps(NativeSteps, SharedGateSteps):
    """``h <- h + e sigmoid(K h + d_z) f(K h + d_h)``."""


NATIVE_FAMILIES: dict[Family, type[FusedSteps]] = {
    "plain": NativePlainSteps,
    "residual": NativeResidualSteps,
    "two-stage": NativeTwoStageSteps,
    "shared gate": NativeSharedGateSteps,
}


def _dtype(tensor: Tensor) -> int:
    return FLOAT32 if tensor.dtype == torch.float32 else FLOAT64


def part_of_member(buffer: Tensor, member: int) -> Tensor:
    """Return the buffer of a member, ``(time, rows, d)``, of ``(time, members, rows, d)``, or that of a single cell."""
    return buffer[:, member] if buffer.dim() == 4 else buffer


def has_rows(tensor: Tensor) -> bool:
    """Return whether the elements of each row are contiguous."""
    return tensor.stride(-1) == 1 or tensor.shape[-1] == 1


def rows_of(tensor: Tensor) -> Rows:
    """Return a tensor ``(time, rows, d)`` as the kernels take it; its rows are contiguous."""
    return Rows(tensor.data_ptr(), tensor.stride(0), tensor.stride(1))


def run(kernel: Callable[[Call], int], call: Call) -> None:
    """Run a pass, its rows spread over as many threads as torch uses."""
    bounds = bounds_of_threads(call.rows, call.rows * call.steps * call.hidden**2)
    if len(bounds) == 2:
        check(kernel(call))
        return
    calls = [part_of(call, start, end) for start, end in pairwise(bounds)]
    for status in run_parts(kernel, calls):
        check(status)


def run_gradient(call: Gradient) -> None:
    """Add to the gradient of a matrix, its rows spread over as many threads as torch uses."""
    bounds = bounds_of_threads(call.outputs, call.rows * call.steps * call.inputs * call.outputs)
    size = 4 if call.dtype == FLOAT32 else 8
    calls = []
    for start, end in pairwise(bounds):
        part = Gradient()
        ctypes.pointer(part)[0] = call
        part.outputs = end - start
        part.by.data += start * size
        part.sums += start * call.inputs * size
        calls.append(part)
    kernel = load_kernels().srnn_add_gradient
    for status in run_parts(kernel, calls) if len(calls) > 1 else map(kernel, calls):
        check(status)


def bounds_of_threads(rows: int, work: int) -> list[int]:
    """Return the rows at which the parts of the threads begin, and their end.

    Args:
        rows: All rows.
        work: Multiplications of all of them.
    """
    blocks = -(-rows // BLOCK_ROWS)
    count = max(1, min(torch.get_num_threads(), blocks, work // MIN_THREAD_WORK))
    return [BLOCK_ROWS * (blocks * part // count) for part in range(count)] + [rows]


def part_of(call: Call, start: int, end: int) -> Call:
    """Return the call for some of the rows."""
    part = Call()
    ctypes.pointer(part)[0] = call
    part.rows = end - start
    size = 4 if call.dtype == FLOAT32 else 8
    singles = (part.lengths, part.drives, part.first, part.last, part.states, part.outputs)
    for rows in (*singles, *part.saved, *part.arguments, *part.velocities):
        if rows.data is not None:
            rows.data += start * rows.row_stride * size
    return part


class NativeEngine(FusedEngine):
    """Runs the cells that ``fused`` runs, a block of rows through the whole sequence at a time.

    What goes beyond a first derivative is handled as ``fused`` does; under a mode that replaces torch's functions, such
    as a counter of operations, ``auto`` takes another engine.

    Raises:
        NativeError: If the kernels cannot be loaded, or ``STABLERNN_NATIVE_PATH`` names a path that this machine does
            not have.
    """

    name = "native"
    families: ClassVar[Mapping[Family, type[FusedSteps]]] = NATIVE_FAMILIES

    def __init__(self) -> None:
        current_path()

    def stacks(self, batch: int, time: int, hidden: int) -> bool:
        return batch * time * hidden <= MAX_STACKED_STATES

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        # A mode such as FakeTensorMode replaces torch's functions, and its tensors may have no memory.
        has_mode = torch._C._len_torch_dispatch_stack() > 0
        return not has_mode and super().supports(cell, drive, timed=timed)
