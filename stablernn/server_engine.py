"""The server engine ``torch``: rebuilds the model of a version from its files and runs it in place of its graphs.

It is found by name in the entry-point group ``stablernn.engines``. It computes the exported functions, with the inputs
and outputs of ``sequence.onnx`` and ``step.onnx``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stablernn.errors import DeviceError
from stablernn.export import model_signature
from stablernn.export.load_exported import reload
from stablernn.export.step import state_names
from stablernn.nn.models import SequenceModel

Array = NDArray[Any]
Function = Callable[[dict[str, Tensor]], dict[str, Tensor]]


class TorchGraph:
    """One function of a model with the interface of an ONNX Runtime session of its graph. Thread-safe.

    Args:
        function: Function from tensors by input name to tensors by output name.
        device: Device of the computation.
    """

    def __init__(self, function: Function, device: torch.device) -> None:
        self._function = function
        self._device = device

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Compute some outputs.

        Args:
            names: Names of the outputs.
            feeds: Every input of the graph, in its dtype and shape.

        Returns:
            Arrays that share no memory with the inputs, in the order of ``names``.

        Raises:
            MemoryError: If the device runs out of memory.
        """
        try:
            with torch.inference_mode():
                inputs = {name: self._tensor(name, value) for name, value in feeds.items()}
                # Before the call, which removes inputs from the dictionary.
                input_pointers = {tensor.untyped_storage().data_ptr() for tensor in inputs.values()}
                outputs = self._function(inputs)
                return [_to_array(outputs[name], input_pointers) for name in names]
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                raise MemoryError(f"torch has not enough memory on the device '{self._device.type}'.") from error
            raise

    def _tensor(self, name: str, value: Array) -> Tensor:
        # torch warns about read-only arrays, because it could write to them.
        tensor = torch.from_numpy(value if value.flags.writeable else value.copy())
        # Lengths are read on the host, which would have to wait for the device.
        return tensor if name == "lengths" else tensor.to(self._device)


class TorchEngine:
    """Whole sequences and single steps of one model, in torch.

    Attributes:
        version: Name and version of the engine, such as ``torch 2.13.0``.
        device: ``"cpu"`` or ``"cuda"``.
        device_note: Reason for the device if ``auto`` was requested; else empty.
        signature: Inputs, outputs and states, as in the manifest of the version.
        sequence: The function of ``sequence.onnx``.
        step: The function of ``step.onnx``; None for a model of complete sequences.
    """

    def __init__(
        self, model: SequenceModel, device: Literal["cpu", "cuda"], device_note: str = "", device_id: int = 0
    ) -> None:
        """Take ownership of a model in evaluation mode and move it to the device."""
        self.version = f"torch {torch.__version__}"
        self.device = device
        self.device_note = device_note
        self.signature: Mapping[str, Any] = model_signature(model)
        torch_device = torch.device(device, device_id) if device == "cuda" else torch.device(device)
        self._model = model.to(torch_device)
        self._states = [] if model.resampling is not None else state_names(model)
        takes_dt = model.max_dt is not None
        with torch.inference_mode():
            for cell in model.rnn.cells:
                # Enabled without a context manager, because the weights of a version never change.
                cell.weight_cache.enable()
            self._weights = [cell.weights(timed=takes_dt) for cell in model.rnn.cells]
        self.sequence = TorchGraph(self._sequence, torch_device)
        self.step = None if model.resampling is not None else TorchGraph(self._step, torch_device)

    @staticmethod
    def set_threads(count: int) -> None:
        """Set the number of threads of one run; in torch, this is a setting of the whole process."""
        torch.set_num_threads(count)

    def _sequence(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x, state, other_inputs = self._split_inputs(inputs)
        lengths, dt = other_inputs.pop("lengths"), other_inputs.pop("dt", None)
        if self._model.every_step:
            outputs, next_state = self._model.run(x, lengths, state, dt)
            return {**outputs, **self._state_outputs(next_state)}
        # Without states among the inputs, the zero state.
        next_state = self._model.final_state(x, lengths, state or None, dt)
        # Not run(), which unrolls a recursive head: its graphs contain one step, which is what emit() returns.
        return self._emit(next_state, other_inputs)

    def _step(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x, state, other_inputs = self._split_inputs(inputs)
        next_state = self._model.transition(self._weights, x, state, other_inputs.pop("dt", None))
        return self._emit(next_state, other_inputs)

    def _split_inputs(self, inputs: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...], dict[str, Tensor]]:
        """Return the main input, the flat state, and the remaining inputs."""
        x, state = inputs.pop(self._model.input_name), tuple(inputs.pop(name) for name in self._states)
        return x, state, inputs

    def _emit(self, state: Sequence[Tensor], known_inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        outputs = dict(zip(self._model.output_names, self._model.emit(tuple(state), **known_inputs), strict=True))
        # A model of complete sequences gives no states.
        return {**outputs, **(self._state_outputs(state) if self._states else {})}

    def _state_outputs(self, state: Sequence[Tensor]) -> dict[str, Tensor]:
        return {f"{name}_out": tensor for name, tensor in zip(self._states, state, strict=True)}


def torch_engine(
    folder: Path,
    device: Literal["auto", "cpu", "cuda"],
    *,
    device_id: int | None = None,
    memory_limit: int | None = None,
) -> TorchEngine:
    """Build the engine from the files of a version; this factory is registered as ``torch``.

    Args:
        folder: Folder with ``config.json`` and ``weights.safetensors``, which are read now and not later. No code in it
            is executed.
        device: ``auto`` is CUDA if torch can use it, else the CPU.
        device_id: Number of the GPU; None for the first one.
        memory_limit: Bytes that torch may take on the GPU, in this process as a whole; None for all of its memory.

    Raises:
        DeviceError: If CUDA is requested and torch cannot use it, or the GPU does not exist; the message says what is
            missing.
        CheckpointError: If no model can be built from the files.
        OSError: If a file cannot be read.
    """
    missing = "" if device == "cpu" else missing_for_cuda()
    if device == "cuda" and missing:
        raise DeviceError(f"The device 'cuda' cannot be used: {missing}. Use --device cpu or auto.")
    selected_device: Literal["cpu", "cuda"] = "cpu" if device == "cpu" or missing else "cuda"
    if selected_device == "cuda":
        _check_gpu(device_id or 0)
        if memory_limit is not None:
            total = torch.cuda.get_device_properties(device_id or 0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, memory_limit / total), device_id or 0)
    note = ""
    if device == "auto":
        note = f"auto: CPU, because {missing}" if missing else "auto: CUDA was found"
    model = reload((folder / "config.json").read_bytes(), (folder / "weights.safetensors").read_bytes())
    return TorchEngine(model, selected_device, note, device_id or 0)


def _check_gpu(device_id: int) -> None:
    """Raise if torch sees no GPU with a number."""
    count = torch.cuda.device_count()
    if device_id >= count:
        raise DeviceError(
            f"There is no GPU with the number {device_id}: torch sees {count}. Use a --device-id from 0 to {count - 1}."
        )


def missing_for_cuda() -> str:
    """Return the reason why torch cannot use CUDA, as the end of a sentence; empty if it can."""
    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        return f"this build of torch ({torch.__version__}) has no CUDA; install one that has, from pytorch.org"
    try:
        torch.empty(0, device="cuda")
    except (RuntimeError, AssertionError) as error:
        return f"torch {torch.__version__} says: {str(error).strip().splitlines()[0].rstrip('.')}"
    return f"torch {torch.__version__} sees no GPU"


def _to_array(tensor: Tensor, input_pointers: set[int]) -> Array:
    """Return a tensor as an array on the host that shares no memory with an input."""
    if tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in input_pointers:
        tensor = tensor.clone()
    array: Array = np.ascontiguousarray(tensor.cpu().numpy())
    return array
