"""The engine ``triton``: a whole sequence in one GPU kernel, for cells whose step is a :class:`StepForm`.

The gradients of the matrices are products over all time steps after the backward kernel, as in ``fused``. To add them
up inside the kernel would take registers as large as the matrices, which the matrices themselves fill, and atomic
additions, whose order changes the last bits from run to run. One product over all steps is as fast as the library's
matrix product.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor

from stablernn.buffers import BufferPool
from stablernn.cells import StableCell
from stablernn.cells._step_form import StepForm
from stablernn.engines.base import register_engine, register_missing
from stablernn.engines.fused import MatrixGradients, Sequence, StepFormEngine, differentiable_gradients, grad_of_drives
from stablernn.engines.fused_families import FAMILIES
from stablernn.engines.triton.plan import Precision, fits, runs_on
from stablernn.transforms import is_transformed

INSTALL = "pip install -e '.[gpu]' in the checkout"


class TritonSequence(torch.autograd.Function):
    """All steps of a batch of sequences.

    Returns:
        The states after all time steps, empty unless they are needed, and the last one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        precision: Precision,
        form: StepForm,
        substeps: int,
        every_output: bool,
        drives: Tensor,
        h: Tensor,
        recurrent: Tensor,
        linear: Tensor | None,
        bias: Tensor | None,
        step_lengths: Tensor | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        # Here and not above: the import of triton takes a second, and a machine without it never comes here.
        from stablernn.engines.triton.launch import Batch, run_forward

        is_training = any(ctx.needs_input_grad)
        batch = Batch(
            precision, replace(form, recurrent=recurrent, linear=linear, bias=bias), substeps, step_lengths, lengths
        )
        states, saved, last = run_forward(
            batch, drives, h, keeps_states=is_training or every_output, keeps_activations=is_training
        )
        ctx.precision, ctx.form, ctx.substeps, ctx.every_output = precision, form, substeps, every_output
        if is_training:
            ctx.save_for_backward(drives, h, recurrent, linear, bias, step_lengths, lengths, states, *saved)
        if not every_output:
            return h.new_empty(0), last
        assert states is not None
        return states[substeps::substeps], last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from stablernn.engines.triton.launch import Batch, run_backward

        grad_outputs, grad_last = grads
        # Checkpointed tensors can be taken only once.
        tensors = ctx.saved_tensors
        drives, _, recurrent, linear, bias, step_lengths, lengths, states = tensors[:8]
        saved = list(tensors[8:])
        form = replace(ctx.form, recurrent=recurrent, linear=linear, bias=bias)
        time, rows = len(drives), drives.shape[-2]
        sequence = Sequence(form, FAMILIES, ctx.substeps, [(rows, time)], ctx.every_output, BufferPool())
        if torch.is_grad_enabled():
            # create_graph=True: a second derivative is taken of what the plain steps compute.
            inputs = (*tensors[:5], None if step_lengths is None else step_lengths[..., None])
            valid = None
            if lengths is not None:
                valid = torch.arange(time, device=lengths.device)[:, None] < lengths
            gradients = differentiable_gradients(sequence, inputs, grad_outputs, grad_last, valid)
            return None, None, None, None, *gradients, None, None
        batch = Batch(ctx.precision, form, ctx.substeps, step_lengths, lengths)
        values = saved or [states[1:]]
        arguments, velocities, grad_first = run_backward(
            batch, values, grad_outputs if ctx.every_output else None, grad_last
        )
        sums = MatrixGradients(FAMILIES[form.family](form))
        read = [states[:-1], saved[2]] if len(saved) == 3 else [states[:-1]] * len(arguments)
        sums.add(arguments, velocities, read, sums.bias_signs(values[: len(arguments)]))
        gradient_of_drives = grad_of_drives(sequence, arguments)
        return (None,) * 4 + (gradient_of_drives, grad_first, sums.recurrent, sums.linear, sums.bias, None, None)


class TritonEngine(StepFormEngine):
    """Runs cells of the families ``plain``, ``residual``, ``two-stage`` and ``shared gate`` in float32 on a GPU.

    With ``TRITON_INTERPRET=1`` it runs on the CPU instead, step by step in Python, for tests. A second derivative and
    the gradient by ``dt`` come from the plain loop.

    Args:
        precision: How the operands of products are rounded: ``ieee`` for float32 as it is; ``tf32`` and ``bf16`` for
            the tensor cores, with 10 and 7 bits after the point. The name of the engine says which: ``triton``,
            ``triton-tf32``, ``triton-bf16``.
    """

    def __init__(self, precision: Precision = "ieee") -> None:
        self.precision: Precision = precision
        self.name = "triton" if precision == "ieee" else f"triton-{precision}"

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        has_form = cell.has_timed_step_form if timed else cell.has_step_form
        if not has_form or drive.dtype != torch.float32 or is_transformed() or torch._C._len_torch_dispatch_stack() > 0:
            return False
        if is_interpreted():
            # The kernels were made for the interpreter when their file was imported.
            is_device = drive.device.type == "cpu"
        else:
            is_device = drive.device.type == "cuda" and runs_on(drive.device)
        return is_device and fits(self.precision, cell.state_sizes[0], drive.device)

    def run_form(
        self,
        cell: StableCell,
        form: StepForm,
        drives: Tensor,
        h: Tensor,
        valid: Tensor | None,
        dt: Tensor | None,
        substeps: int,
        *,
        every_output: bool,
    ) -> tuple[Tensor | None, Tensor]:
        step_lengths = None
        if dt is not None:
            step_lengths = (dt.t() * (form.step_size / substeps)).to(drives.dtype).contiguous()
        lengths = None if valid is None else valid.sum(dim=1).to(torch.int32)
        outputs, last = cast(
            "tuple[Tensor, Tensor]",
            TritonSequence.apply(  # type: ignore[no-untyped-call]
                self.precision,
                form,
                substeps if dt is not None else 1,
                every_output,
                drives.contiguous(),
                h.contiguous(),
                form.recurrent,
                form.linear,
                form.bias,
                step_lengths,
                lengths,
            ),
        )
        return outputs if every_output else None, last


def is_interpreted() -> bool:
    """Return whether Triton runs its kernels in the interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def register_engines() -> None:
    """Register an engine for each rounding of operands, or say what is missing."""
    engines = [TritonEngine("bf16"), TritonEngine("tf32"), TritonEngine()]
    for engine in engines:
        if find_spec("triton") is None:
            register_missing(engine.name, f"The engine '{engine.name}' needs the package triton: {INSTALL}, on Linux.")
        else:
            # 'auto' never rounds operands, and never takes the interpreter, which is thousands of times slower.
            register_engine(engine, auto_devices=("cuda",) if engine.precision == "ieee" else ())


register_engines()
