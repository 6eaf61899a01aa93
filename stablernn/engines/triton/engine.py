"""The engine ``triton``: a whole sequence in one GPU kernel, for cells whose step is a :class:`StepForm`."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from stablernn.cells import StableCell, State
from stablernn.cells._step_form import StepForm
from stablernn.engines.loop import LoopEngine
from stablernn.engines.select import register_engine, register_missing
from stablernn.engines.triton.plan import Precision, fits, runs_on
from stablernn.engines.triton.sequence import run_form
from stablernn.transforms import is_transformed

INSTALL = "pip install -e '.[gpu]' in the checkout"


class TritonEngine:
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
        if dt is not None and dt.requires_grad:
            return LoopEngine().run(cell, weights, drive, state, valid, dt, substeps, every_output=every_output)
        form = cell.step_form(weights)
        assert form is not None
        (h,) = state
        outputs, last = run_form(
            self.precision, form, drive.transpose(0, 1), h, valid, dt, substeps, every_output=every_output
        )
        return None if outputs is None else outputs.transpose(0, 1), (last,)

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
        if dt is not None and dt.requires_grad:
            return [
                self.run(cell, matrices, drive, state, valid, dt, substeps, every_output=every_output)
                for cell, matrices, drive, state in zip(cells, weights, drives, states, strict=True)
            ]
        forms = [cell.step_form(matrices) for cell, matrices in zip(cells, weights, strict=True)]
        # The members run side by side, on processors that one member of few sequences would leave idle.
        outputs, last = run_form(
            self.precision,
            StepForm.stack([form for form in forms if form is not None]),
            torch.stack([drive.transpose(0, 1) for drive in drives], dim=1),
            torch.stack([h for (h,) in states]),
            valid,
            dt,
            substeps,
            every_output=every_output,
        )
        by_member = [None] * len(cells) if outputs is None else [part.transpose(0, 1) for part in outputs.unbind(1)]
        return [(output, (h,)) for output, h in zip(by_member, last.unbind(), strict=True)]


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
