"""Export to TorchScript: the traced step in a scripted loop over time, so that sequences may have any length.

Torch has deprecated TorchScript as a whole, tracing and loading included. The format stays for programs that load
nothing else, as long as torch supports it; ONNX is the first choice. All computations are traced. A trace unrolls
Python loops, though, and would be valid for one sequence length only, so the loop over time is written as TorchScript
source and added to the traced module, which does not need ``torch.jit.script``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from stablernn.errors import ExportError
from stablernn.export.step import Emission, Transition, sample_inputs, sample_known_inputs, state_names
from stablernn.nn.models import SequenceModel

# TorchScript has no variadic arguments and the number of states and outputs depends on the model, so the source of the
# loop is a template. Its variables stand in exported files.
_LOOP = """
def forward(self, {inputs}, lengths: Tensor, {state_parameters}) -> Tuple[{types}]:
    {patch_lines}
    for time in range({first}.size(1)):
        keep = (time < lengths).unsqueeze(1)
        {next_states} = self.transition({step_values}, {names})
        {masking_lines}
    {outputs} = self.emission({emission_arguments})
    return {results}
"""

_LOOP_WITH_EVERY_OUTPUT = """
def forward(self, {inputs}, lengths: Tensor, {state_parameters}) -> Tuple[{types}]:
    {list_declarations}
    for time in range({first}.size(1)):
        keep = (time < lengths).unsqueeze(1)
        {next_states} = self.transition({step_values}, {names})
        {masking_lines}
        {outputs} = self.emission({names})
        {append_lines}
    return {results}
"""

# Samples to patches (batch, patches, stride, features). Padding samples are missing values with a time step of 1.
_PATCH_LINES = """
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
_PATCH_DT_LINES = """
    dt = torch.where(valid, dt, torch.ones_like(dt))
    dt = torch.cat([dt, torch.ones([dt.size(0), rest])], dim=1).gather(1, place.clamp(min=0))
    dt = torch.where(place >= 0, dt, torch.ones_like(dt)).view(dt.size(0), -1, {stride})
"""
_PATCH_LENGTHS_LINES = """
    lengths = torch.div(lengths + {stride} - 1, {stride}, rounding_mode="floor")
"""


def script(model: SequenceModel) -> torch.jit.ScriptModule:
    """Return a module with the inputs and outputs of ``sequence.onnx``, for sequences of any length and any batch size.

    Args:
        model: The model, in evaluation mode and without gradients.

    Raises:
        ExportError: If the installed torch no longer has TorchScript.
    """
    if not hasattr(torch.jit, "trace_module"):
        raise ExportError(
            f"torch {torch.__version__} no longer writes TorchScript; export to onnx alone, whose sequence.onnx takes "
            "the same inputs."
        )
    names = state_names(model)
    next_names = [f"{name}_out" for name in names]
    outputs = list(model.output_names)
    state = model.initial_state(2)
    samples, known_inputs = sample_inputs(model), sample_known_inputs(model)
    with _suppress_deprecation():
        # No check of the trace against a second run: parity is checked on whole sequences afterwards.
        module: torch.jit.ScriptModule = torch.jit.trace_module(  # type: ignore[no-untyped-call]
            _TracedMethods(model).eval(),
            {"transition": (*samples.values(), *state), "emission": (*state, *known_inputs.values())},
            check_trace=False,
        )
        module.define(
            (_LOOP_WITH_EVERY_OUTPUT if model.every_step else _LOOP).format(
                first=model.input_name,
                list_declarations="\n    ".join(f"all_{name}: List[Tensor] = []" for name in outputs),
                append_lines="\n        ".join(f"all_{name}.append({name})" for name in outputs),
                inputs=", ".join(f"{name}: Tensor" for name in samples),
                step_values=", ".join(f"{name}[:, time]" for name in samples),
                patch_lines=_patch_source(model, [*samples]),
                state_parameters=", ".join(f"{name}: Tensor" for name in [*names, *known_inputs]),
                emission_arguments=", ".join([*names, *known_inputs]),
                types=", ".join("Tensor" for _ in [*outputs, *names]),
                next_states=_tuple_source(next_names),
                names=", ".join(names),
                masking_lines="\n        ".join(
                    f"{name} = torch.where(keep, {new}, {name})" for name, new in zip(names, next_names, strict=True)
                ),
                outputs=_tuple_source(outputs),
                results=_tuple_source(
                    [*(_stack_source(name) if model.every_step else name for name in outputs), *names]
                ),
            )
        )
        module.eval()
    return module


def save(module: torch.jit.ScriptModule, path: Path) -> None:
    """Write the module to ``path``."""
    with _suppress_deprecation():
        torch.jit.save(module, str(path))


class _TracedMethods(nn.Module):
    """The step and the outputs of a model as two methods that are traced into one module."""

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
def _suppress_deprecation() -> Iterator[None]:
    """Suppress torch's warnings that TorchScript is deprecated, since the caller asked for the format by name."""
    with warnings.catch_warnings():
        # On Python 3.14 the same warning reads "is not supported in Python 3.14+ and may break"; torch 2.14 made it a
        # FutureWarning.
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is (deprecated|not supported)")
        yield


def _patch_source(model: SequenceModel, names: list[str]) -> str:
    """Return the source that turns samples into patches; ``pass`` if a step takes a single sample."""
    if model.patches.size == 1:
        return "pass"
    source = _PATCH_LINES + (_PATCH_DT_LINES if "dt" in names else "") + _PATCH_LENGTHS_LINES
    return source.format(stride=model.patches.stride, end_aligned=model.patches.end_aligned).strip()


def _stack_source(name: str) -> str:
    return f"torch.stack(all_{name}, dim=1)"


def _tuple_source(names: list[str]) -> str:
    # Without the comma, one name would be a bare value and no tuple.
    return ", ".join(names) + ("," if len(names) == 1 else "")
