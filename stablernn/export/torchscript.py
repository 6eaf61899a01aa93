"""TorchScript: the traced step in a loop over time, so that the length stays free.

Torch has deprecated TorchScript as a whole, tracing and loading included. The format is kept for programs that load
nothing else, for as long as torch has it; ONNX is the first choice. Everything that computes is traced. A trace unrolls
Python's loops, though, and would hold for sequences of one length only: the loop is written in TorchScript's own
language and added to the traced module, which needs no ``torch.jit.script``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from stablernn.errors import ExportError
from stablernn.export.step import Emission, Transition, known_samples, sample_inputs, state_names
from stablernn.nn.models import SequenceModel

# The arity of states and outputs differs by model, and TorchScript has no argument lists: the loop's source is filled
# in for each model.
_LOOP = """
def forward(self, {inputs}, lengths: Tensor, {declared}) -> Tuple[{types}]:
    {grouped}
    for time in range({first}.size(1)):
        keep = (time < lengths).unsqueeze(1)
        {following} = self.transition({read}, {names})
        {held}
    {outputs} = self.emission({told})
    return {results}
"""

_LOOP_OF_EVERY_STEP = """
def forward(self, {inputs}, lengths: Tensor, {declared}) -> Tuple[{types}]:
    {begun}
    for time in range({first}.size(1)):
        keep = (time < lengths).unsqueeze(1)
        {following} = self.transition({read}, {names})
        {held}
        {outputs} = self.emission({names})
        {grown}
    return {results}
"""

# Samples to patches: those that are not there are missing, and their time is the regular one.
_GROUPED = """
    valid = torch.arange(x.size(1)).unsqueeze(0) < lengths.unsqueeze(1)
    rest = (-x.size(1)) % {stride}
    x = torch.where(valid.unsqueeze(2), x, torch.full_like(x, float("nan")))
    x = torch.cat([x, torch.full([x.size(0), rest, x.size(2)], float("nan"))], dim=1)
    shift = torch.zeros_like(lengths).unsqueeze(1)
    if {end_aligned}:
        shift = torch.remainder(-lengths, {stride}).unsqueeze(1)
    place = torch.arange(x.size(1)).unsqueeze(0) - shift
    x = x.gather(1, place.clamp(min=0).unsqueeze(2).expand(x.size(0), x.size(1), x.size(2)))
    x = torch.where((place >= 0).unsqueeze(2), x, torch.full_like(x, float("nan")))
    x = x.view(x.size(0), -1, {stride}, x.size(2))
"""
_GROUPED_DT = """
    dt = torch.where(valid, dt, torch.ones_like(dt))
    dt = torch.cat([dt, torch.ones([dt.size(0), rest])], dim=1).gather(1, place.clamp(min=0))
    dt = torch.where(place >= 0, dt, torch.ones_like(dt)).view(dt.size(0), -1, {stride})
"""
_GROUPED_LENGTHS = """
    lengths = torch.div(lengths + {stride} - 1, {stride}, rounding_mode="floor")
"""


def script(model: SequenceModel) -> torch.jit.ScriptModule:
    """A module with the inputs and outputs of ``sequence.onnx``, for any length and batch.

    Args:
        model: In evaluation mode, without gradients.

    Raises:
        ExportError: If the installed torch has no TorchScript any more.
    """
    if not hasattr(torch.jit, "trace_module"):
        raise ExportError(
            f"torch {torch.__version__} cannot write TorchScript any more; export to onnx alone, whose sequence.onnx "
            "takes the same inputs."
        )
    names = state_names(model)
    after = [f"{name}_out" for name in names]
    outputs = list(model.output_names)
    state = model.initial_state(2)
    samples, known = sample_inputs(model), known_samples(model)
    with _deprecated():
        # Comparing the trace with a second run would say nothing: parity is checked on whole sequences.
        module: torch.jit.ScriptModule = torch.jit.trace_module(  # type: ignore[no-untyped-call]
            _Parts(model).eval(),
            {"transition": (*samples.values(), *state), "emission": (*state, *known.values())},
            check_trace=False,
        )
        module.define(
            (_LOOP_OF_EVERY_STEP if model.every_step else _LOOP).format(
                first=model.input_name,
                begun="\n    ".join(f"all_{name}: List[Tensor] = []" for name in outputs),
                grown="\n        ".join(f"all_{name}.append({name})" for name in outputs),
                inputs=", ".join(f"{name}: Tensor" for name in samples),
                read=", ".join(f"{name}[:, time]" for name in samples),
                grouped=_grouping(model, [*samples]),
                declared=", ".join(f"{name}: Tensor" for name in [*names, *known]),
                told=", ".join([*names, *known]),
                types=", ".join("Tensor" for _ in [*outputs, *names]),
                following=_tuple(after),
                names=", ".join(names),
                held="\n        ".join(
                    f"{name} = torch.where(keep, {new}, {name})" for name, new in zip(names, after, strict=True)
                ),
                outputs=_tuple(outputs),
                results=_tuple([*(_stacked(name) if model.every_step else name for name in outputs), *names]),
            )
        )
        module.eval()
    return module


def save(module: torch.jit.ScriptModule, path: Path) -> None:
    """Write the module to ``path``."""
    with _deprecated():
        torch.jit.save(module, str(path))


class _Parts(nn.Module):
    """A step and the outputs of a model as two methods, to be traced into one module."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.step = Transition(model)
        self.head = Emission(model)

    def transition(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = self.step(*arguments)
        return outputs

    def emission(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = self.head(*arguments)
        return outputs


@contextmanager
def _deprecated() -> Iterator[None]:
    """Suppress torch's warnings that TorchScript is deprecated: whoever exports has asked for it by name."""
    with warnings.catch_warnings():
        # Python 3.14 has another text for the same category: "is not supported in Python 3.14+ and may break".
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is (deprecated|not supported)", DeprecationWarning)
        yield


def _grouping(model: SequenceModel, names: list[str]) -> str:
    """The lines that turn samples into patches, where the model has any."""
    if model.patches.size == 1:
        return "pass"
    lines = _GROUPED + (_GROUPED_DT if "dt" in names else "") + _GROUPED_LENGTHS
    return lines.format(stride=model.patches.stride, end_aligned=model.patches.end_aligned).strip()


def _stacked(name: str) -> str:
    return f"torch.stack(all_{name}, dim=1)"


def _tuple(names: list[str]) -> str:
    return ", ".join(names) + ("," if len(names) == 1 else "")
