"""The engine ``torch`` of the server: a version's model rebuilt from its files, and run as its graphs are run.

Found by name in the entry-point group ``stablernn.engines``. What it computes are the functions that were exported, by
the inputs and outputs of ``sequence.onnx`` and ``step.onnx``.
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
    """One function of a model, called as a session of its graph is. Safe to call from several threads at once.

    Args:
        function: From tensors by the graph's inputs to tensors by its outputs.
        device: Where it computes.
    """

    def __init__(self, function: Function, device: torch.device) -> None:
        self._function = function
        self._device = device

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Some outputs.

        Args:
            names: Which.
            feeds: Every input of the graph, in its dtype and shape.

        Returns:
            Arrays of the caller's own, in the order of ``names``.

        Raises:
            MemoryError: If the device has not enough memory.
        """
        try:
            with torch.inference_mode():
                given = {name: self._tensor(name, value) for name, value in feeds.items()}
                inputs = {tensor.untyped_storage().data_ptr() for tensor in given.values()}
                outputs = self._function(given)
                return [_array(outputs[name], inputs) for name in names]
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                raise MemoryError(f"torch has not enough memory on the device '{self._device.type}'.") from error
            raise

    def _tensor(self, name: str, value: Array) -> Tensor:
        # torch warns of an array that it could write to and must not.
        tensor = torch.from_numpy(value if value.flags.writeable else value.copy())
        # Lengths are looked at by the host, which would wait for the device.
        return tensor if name == "lengths" else tensor.to(self._device)


class TorchEngine:
    """Whole sequences and single steps of one model, in torch.

    Attributes:
        version: What runs, such as ``torch 2.13.0``.
        device: ``"cpu"`` or ``"cuda"``.
        device_note: Why, where ``auto`` was asked for; else empty.
        signature: Inputs, outputs and states, as the manifest of the version holds them.
        sequence: What ``sequence.onnx`` computes.
        step: What ``step.onnx`` computes.
    """

    def __init__(self, model: SequenceModel, device: Literal["cpu", "cuda"], device_note: str = "") -> None:
        """Take over a model in evaluation mode, which is moved to the device."""
        self.version = f"torch {torch.__version__}"
        self.device = device
        self.device_note = device_note
        self.signature: Mapping[str, Any] = model_signature(model)
        place = torch.device(device)
        self._model = model.to(place)
        self._states = state_names(model)
        timed = model.max_dt is not None
        with torch.inference_mode():
            for cell in model.rnn.cells:
                # For good: weights of a version never change. The library's own context manager ends.
                cell._kept = {}
            self._weights = [cell.weights(timed=timed) for cell in model.rnn.cells]
        self.sequence = TorchGraph(self._sequence, place)
        self.step = TorchGraph(self._step, place)

    @staticmethod
    def set_threads(count: int) -> None:
        """How many threads one run may use; of the whole process, as torch has it."""
        torch.set_num_threads(count)

    def _sequence(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x, state, known = self._parts(inputs)
        lengths, dt = known.pop("lengths"), known.pop("dt", None)
        if self._model.every_step:
            outputs, following = self._model.run(x, lengths, state, dt)
            return {**outputs, **self._named(following)}
        following = self._model.final_state(x, lengths, state, dt)
        # Not run(), which rolls a recursive head out: its graphs hold one step, which is what emit() gives.
        return self._answers(following, known)

    def _step(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x, state, known = self._parts(inputs)
        following = self._model.transition(self._weights, x, state, known.pop("dt", None))
        return self._answers(following, known)

    def _parts(self, inputs: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...], dict[str, Tensor]]:
        """The main input, the flat state, and what is left."""
        x, state = inputs.pop(self._model.input_name), tuple(inputs.pop(name) for name in self._states)
        return x, state, inputs

    def _answers(self, state: Sequence[Tensor], known: Mapping[str, Tensor]) -> dict[str, Tensor]:
        answers = self._model.emit(tuple(state), **known)
        return {**dict(zip(self._model.output_names, answers, strict=True)), **self._named(state)}

    def _named(self, state: Sequence[Tensor]) -> dict[str, Tensor]:
        return {f"{name}_out": tensor for name, tensor in zip(self._states, state, strict=True)}


def torch_engine(folder: Path, device: Literal["auto", "cpu", "cuda"]) -> TorchEngine:
    """The engine over the files of a version; the factory that is registered as ``torch``.

    Args:
        folder: Holds ``config.json`` and ``weights.safetensors``; read here and not later. Nothing in it is run.
        device: ``auto`` is CUDA where torch can use it, else the CPU.

    Raises:
        DeviceError: If CUDA is asked for and torch cannot use it; the sentence says what is missing.
        CheckpointError: If the files do not make a model.
        OSError: If one cannot be read.
    """
    missing = "" if device == "cpu" else missing_for_cuda()
    if device == "cuda" and missing:
        raise DeviceError(f"The device 'cuda' cannot be used: {missing}. Use --device cpu or auto.")
    chosen: Literal["cpu", "cuda"] = "cpu" if device == "cpu" or missing else "cuda"
    note = ""
    if device == "auto":
        note = f"auto: CPU, because {missing}" if missing else "auto: CUDA was found"
    model = reload((folder / "config.json").read_bytes(), (folder / "weights.safetensors").read_bytes())
    return TorchEngine(model, chosen, note)


def missing_for_cuda() -> str:
    """What keeps torch from CUDA, as the end of a sentence; empty when nothing does."""
    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        return f"this build of torch ({torch.__version__}) has no CUDA; install one that has, from pytorch.org"
    try:
        torch.empty(0, device="cuda")
    except (RuntimeError, AssertionError) as error:
        return f"torch {torch.__version__} says: {str(error).strip().splitlines()[0].rstrip('.')}"
    return f"torch {torch.__version__} sees no GPU"


def _array(tensor: Tensor, inputs: set[int]) -> Array:
    """The numbers on the host, in memory that no input has."""
    if tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in inputs:
        tensor = tensor.clone()
    found: Array = np.ascontiguousarray(tensor.cpu().numpy())
    return found
