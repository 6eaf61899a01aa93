"""The signature of a version's ONNX graphs: names, dtypes and shapes of inputs and outputs, and pairs of states.

Publishing and serving validate with the same classes, so that both reject a bad signature with the same message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Size = Annotated[int, Field(ge=1)] | Annotated[str, Field(min_length=1)]


class _FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class TensorSignature(_FrozenModel):
    """One input or output of a graph.

    Attributes:
        name: Name in the graph.
        dtype: ``float32`` or ``int64``.
        shape: Size of each axis: a number if it is fixed, a name (``batch``, ``time``) if it varies.
        optional: True if a client of the server may omit it.
    """

    name: str = Field(min_length=1)
    dtype: Literal["float32", "int64"]
    shape: list[Size]
    optional: bool = False


class StateSignature(_FrozenModel):
    """One recurrent state: an input for its value and an output for its next value.

    Attributes:
        input: Name of the input.
        output: Name of the output.
        shape: Shape of input and output.
        dtype: Type of input and output.
        role: Description for people, such as ``layer 0 hidden``.
    """

    input: str
    output: str
    shape: list[Size]
    dtype: Literal["float32", "int64"] = "float32"
    role: str = ""


class GraphSignature(_FrozenModel):
    """Inputs and outputs of one graph.

    Attributes:
        inputs: Inputs in the order of the graph, with distinct names.
        outputs: Outputs in the order of the graph, with distinct names.
    """

    inputs: list[TensorSignature] = Field(min_length=1)
    outputs: list[TensorSignature] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_names_differ(self) -> GraphSignature:
        for side, tensors in (("input", self.inputs), ("output", self.outputs)):
            _check_distinct(side, [tensor.name for tensor in tensors])
        return self


class Signature(_FrozenModel):
    """The graphs of a version and their states.

    ``stablernn export`` writes all of them, except for the step and the states of a model that resamples complete
    sequences. A version that is not served needs none.

    Attributes:
        sequence: Graph over whole sequences, ``sequence.onnx``.
        step: Graph of one time step, ``step.onnx``.
        states: States that both graphs have as inputs and outputs.
        max_dt: Longest ``dt`` that the graphs accept; None if they accept any, or have no input ``dt``.
        resample_steps: Samples to which the graph resamples each sequence over its whole length; None if it reads them
            as they are. It needs complete sequences then: there is no step, and there are no states.
    """

    sequence: GraphSignature | None = None
    step: GraphSignature | None = None
    states: list[StateSignature] = Field(default_factory=list)
    max_dt: Annotated[float, Field(gt=0)] | None = None
    resample_steps: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _check_resampling(self) -> Signature:
        if self.resample_steps is not None and (self.step is not None or self.states):
            raise ValueError("a model with resample_steps needs complete sequences and has no step and no states")
        return self

    @model_validator(mode="after")
    def _check_states(self) -> Signature:
        # A shared input or output would let one state overwrite another.
        _check_distinct("state", [state.input for state in self.states])
        _check_distinct("state", [state.output for state in self.states])
        for kind, graph in (("sequence", self.sequence), ("step", self.step)):
            if graph is None:
                continue
            for state in self.states:
                for side, name, tensors in (
                    ("input", state.input, graph.inputs),
                    ("output", state.output, graph.outputs),
                ):
                    tensor = next((tensor for tensor in tensors if tensor.name == name), None)
                    if tensor is None:
                        raise ValueError(
                            f"the state '{state.input}' names the {side} '{name}', which {kind} does not have"
                        )
                    if (tensor.shape, tensor.dtype) != (state.shape, state.dtype):
                        raise ValueError(
                            f"the state '{state.input}' is {state.dtype} {state.shape}, the {side} '{name}' of {kind} "
                            f"is {tensor.dtype} {tensor.shape}"
                        )
        return self


def _check_distinct(kind: str, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"the {kind} '{name}' is there twice")
