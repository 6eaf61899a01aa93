"""A model from samples to answers by the kernels: whole sequences, and steps of streams."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_native.bindings import (
    FAMILIES,
    FLOAT32,
    NONLINEARITIES,
    Embedding,
    Layer,
    Model,
    Run,
    check,
    current_path,
    load_kernels,
    path_number,
)
from stablernn_native.description import READOUTS, Description
from stablernn_native.threads import MIN_THREAD_WORK, run_parts

Array = NDArray[Any]

_STATISTICS = {"mean": 1, "max": 2}


class NativeModel:
    """The matrices of a model, packed for a path. Thread-safe.

    Args:
        description: The model.
        path: Name of a path; by default the fastest, or the one that ``STABLERNN_NATIVE_PATH`` names.

    Attributes:
        path: Name of the path.
        state_sizes: Lengths of the states.
        outputs: Answers of a step; 0 without a head.

    Raises:
        NativeError: If this machine does not have the path.
    """

    def __init__(self, description: Description, path: str | None = None) -> None:
        self.path = current_path() if path is None else path
        self.state_sizes = description.state_sizes
        self.outputs = 0 if description.head is None else len(description.head.bias)
        self._description = description
        self._number = path_number(self.path)
        # What the structures point to.
        self._memory: list[Any] = []
        self._structure = self._model()
        self._multiplications = sum(
            layer.recurrent.size * (2 if layer.linear is not None else 1) for layer in description.layers
        )

    def _model(self) -> Model:
        description, head = self._description, self._description.head
        layers = (Layer * len(description.layers))()
        for structure, layer in zip(layers, description.layers, strict=True):
            structure.family = FAMILIES[layer.family]
            structure.nonlinearity = NONLINEARITIES[layer.nonlinearity]
            structure.step_size = layer.step_size
            structure.recurrent = self._pack(layer.recurrent)
            structure.linear = self._pack(layer.linear)
            structure.bias = self._address(layer.bias)
            structure.input = self._pack_affine(layer.input)
            structure.input_bias = self._address(layer.input_bias)
        parts = READOUTS[description.readout]
        model = Model(
            path=self._number,
            dtype=FLOAT32,
            features=description.features,
            samples=description.patch,
            overlap=description.overlap,
            mean=self._address(description.mean),
            scale=self._address(description.scale),
            has_mask=description.mask_channel,
            statistics=sum(_STATISTICS.get(part, 0) for part in parts),
            hidden=description.hidden,
            members=description.members,
            num_layers=len(layers) // description.members,
            layers=layers,
            outputs=self.outputs,
            reads_last="last" in parts,
            every_step=description.every_step,
            temperature=1.0,
        )
        context = description.context
        if context is not None:
            model.window, model.season = context.window, context.season
            model.floor = self._address(context.floor)
            model.scale_floor, model.clip = context.scale_floor, context.clip
        if description.embeddings is not None:
            model.embedding = len(description.embeddings[0][1])
            model.embeddings = (Embedding * description.members)(
                *(Embedding(self._pack_affine(weight), self._address(bias)) for weight, bias in description.embeddings)
            )
        if head is not None:
            model.head = self._pack_affine(head.weight)
            model.head_bias = self._address(head.bias)
            model.output_mean = self._address(head.mean)
            model.output_scale = self._address(head.scale)
            model.temperature = head.temperature
        return model

    def execute(self, run: Run, threads: int) -> None:
        """Run a call, its rows shared out among threads.

        Args:
            run: From :meth:`prepare`.
            threads: Threads at most.

        Raises:
            NativeError: If the kernels refuse it.
            MemoryError: If there is not enough memory.
            RuntimeError: If a thread cannot be started.
        """
        work = run.rows * run.steps * self._multiplications
        count = min(threads, run.rows, max(1, work // MIN_THREAD_WORK))
        kernel = load_kernels().srnn_run_model
        if count <= 1:
            check_run(kernel(ctypes.byref(run)))
            return
        bounds = [run.rows * part // count for part in range(count + 1)]
        parts = [_part(run, start, end) for start, end in zip(bounds, bounds[1:], strict=False)]
        for status in run_parts(lambda part: kernel(ctypes.byref(part)), parts):
            check_run(status)

    def prepare(
        self,
        x: Array,
        states: Sequence[Array],
        answers: Array | None,
        probabilities: Array | None,
        order: Array,
        lengths: Array | None = None,
    ) -> Run:
        """Return a call that refers to arrays, which have to outlive it; all are contiguous.

        Args:
            x: float32, ``(batch, steps, patch, features)``.
            states: float32, ``(batch, size)`` each; the call overwrites them.
            answers: float32, ``(batch, outputs)``, or with a time axis after the batch; None without a head.
            probabilities: Their softmax, written likewise; None if it is not needed.
            order: int64, the numbers of the rows to compute, by falling length.
            lengths: int64, ``(batch,)``, steps of each row; None if all have all.

        Raises:
            ValueError: If an array has another type or shape, or is not contiguous.
        """
        batch, steps = x.shape[:2]
        description = self._description
        answer_shape = (batch, steps, self.outputs) if description.every_step else (batch, self.outputs)
        expected = [
            (x, np.float32, (batch, steps, description.patch, description.features)),
            (order, np.int64, (batch,)),
        ]
        expected += [(state, np.float32, (batch, size)) for state, size in zip(states, self.state_sizes, strict=True)]
        expected += [(array, np.float32, answer_shape) for array in (answers, probabilities) if array is not None]
        expected += [] if lengths is None else [(lengths, np.int64, (batch,))]
        for array, dtype, shape in expected:
            if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
                raise ValueError(
                    f"expected a contiguous array of {dtype.__name__} {shape}, got {array.dtype} {array.shape}."
                )
        if (answers is None) != (self.outputs == 0):
            raise ValueError("A model has answers if it has a head.")
        run = Run(
            model=ctypes.pointer(self._structure),
            steps=steps,
            order=order.ctypes.data,
            rows=batch,
            lengths=None if lengths is None else lengths.ctypes.data,
            x=x.ctypes.data,
            states=(ctypes.c_void_p * len(states))(*(state.ctypes.data for state in states)),
            answers=None if answers is None else answers.ctypes.data,
            probabilities=None if probabilities is None else probabilities.ctypes.data,
        )
        return run

    def _address(self, array: Array | None) -> int | None:
        if array is None:
            return None
        self._memory.append(array)
        return int(array.ctypes.data)

    def _pack(self, matrix: Array | None) -> int | None:
        if matrix is None:
            return None
        lib, hidden, strides = load_kernels(), len(matrix), [stride // matrix.itemsize for stride in matrix.strides]
        packed = np.empty(lib.srnn_packed_size(self._number, FLOAT32, hidden), np.float32)
        check(lib.srnn_pack(self._number, FLOAT32, hidden, matrix.ctypes.data, *strides, packed.ctypes.data))
        return self._address(packed)

    def _pack_affine(self, matrix: Array) -> int | None:
        lib = load_kernels()
        packed = np.empty(lib.srnn_affine_size(self._number, FLOAT32, *matrix.shape), np.float32)
        check(lib.srnn_pack_affine(self._number, FLOAT32, *matrix.shape, matrix.ctypes.data, packed.ctypes.data))
        return self._address(packed)


_NO_MEMORY = 2


def check_run(status: int) -> None:
    """Refuse the status of a run that failed.

    Raises:
        MemoryError: If there was not enough memory.
        NativeError: For any other status but 0.
    """
    if status == _NO_MEMORY:
        raise MemoryError("There is not enough memory for the states of a batch.")
    check(status)


def _part(run: Run, start: int, end: int) -> Run:
    """Return the call for some of its rows."""
    part = Run()
    ctypes.pointer(part)[0] = run
    part.order = run.order + start * ctypes.sizeof(ctypes.c_int64)
    part.rows = end - start
    return part
