"""TorchScript: the traced step in a scripted loop, so that the length stays free.

TorchScript is deprecated in torch and kept as a format for other programs; ONNX is the first choice.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from stablernn.export.step import Emission, Transition, sample_inputs, state_names
from stablernn.models import SequenceModel

# The arity of states and outputs differs by model, and TorchScript has no argument lists: the loop's source is filled
# in for each model.
_LOOP = """
def forward(self, {inputs}, lengths: Tensor, {declared}) -> Tuple[{types}]:
    for time in range(x.size(1)):
        keep = (time < lengths).unsqueeze(1)
        {following} = self.transition({read}, {names})
        {held}
    {outputs} = self.emission({names})
    return {results}
"""


def script(model: SequenceModel) -> torch.jit.ScriptModule:
    """A module with inputs ``x[, dt], lengths, state_0, ..`` and ``sequence.onnx``'s outputs; any length and batch.

    Args:
        model: In evaluation mode, without gradients.
    """
    names = state_names(model)
    after = [f"{name}_out" for name in names]
    outputs = list(model.output_names)
    state = model.initial_state(2)
    samples = sample_inputs(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parts = nn.Module()
        parts.transition = _traced(Transition(model), (*samples.values(), *state))
        parts.emission = _traced(Emission(model), state)
        module: torch.jit.ScriptModule = torch.jit.script(parts)
        module.define(
            _LOOP.format(
                inputs=", ".join(f"{name}: Tensor" for name in samples),
                read=", ".join(f"{name}[:, time]" for name in samples),
                declared=", ".join(f"{name}: Tensor" for name in names),
                types=", ".join("Tensor" for _ in [*outputs, *names]),
                following=_tuple(after),
                names=", ".join(names),
                held="\n        ".join(
                    f"{name} = torch.where(keep, {new}, {name})" for name, new in zip(names, after, strict=True)
                ),
                outputs=_tuple(outputs),
                results=_tuple([*outputs, *names]),
            )
        )
        module.eval()
    return module


def save(module: torch.jit.ScriptModule, path: Path) -> None:
    """Write the module to ``path``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(module, str(path))


def _traced(module: nn.Module, arguments: tuple[Tensor, ...]) -> torch.jit.ScriptModule:
    # Checking a trace against a second run says nothing here: parity against the model is checked on whole sequences.
    traced: torch.jit.ScriptModule = torch.jit.trace(  # type: ignore[no-untyped-call]
        module.eval(), arguments, check_trace=False
    )
    return traced


def _tuple(names: list[str]) -> str:
    return ", ".join(names) + ("," if len(names) == 1 else "")
