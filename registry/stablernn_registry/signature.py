"""The signature of a version's ONNX graphs: names, types and shapes of their inputs and outputs, and how states pair.

One model for whoever publishes and whoever serves: what does not fit is refused by both with the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Size = Annotated[int, Field(ge=1)] | Annotated[str, Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TensorSignature(_Part):
    """One input or output of a graph.

    Attributes:
        name: Its name in the graph.
        dtype: ``float32`` or ``int64``.
        shape: A number for a fixed size, a word (``batch``, ``time``) for a free one.
        optional: Whether a client of the server may leave it out.
    """

    name: str = Field(min_length=1)
    dtype: Literal["float32", "int64"]
    shape: list[Size]
    optional: bool = False


class StateSignature(_Part):
    """One state: the input that it enters by and the output that gives its next value.

    Attributes:
        input: Name of the input.
        output: Name of the output.
        shape: Shape of both.
        dtype: Type of both.
        role: What it is, for people: ``layer 0 hidden``.
    """

    input: str
    output: str
    shape: list[Size]
    dtype: Literal["float32", "int64"] = "float32"
    role: str = ""


class GraphSignature(_Part):
    """Inputs and outputs of one graph.

    Attributes:
        inputs: In the order of the graph, names differ.
        outputs: Likewise.
    """

    inputs: list[TensorSignature] = Field(min_length=1)
    outputs: list[TensorSignature] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_differ(self) -> GraphSignature:
        for side, tensors in (("input", self.inputs), ("output", self.outputs)):
            _check_distinct(side, [tensor.name for tensor in tensors])
        return self


class Signature(_Part):
    """Graphs and states; all are there in what ``stablernn export`` writes, none need be where nothing is served.

    Attributes:
        sequence: The graph over whole sequences, ``sequence.onnx``.
        step: The graph of one time step, ``step.onnx``.
        states: The states that both graphs take and give.
        max_dt: The longest ``dt`` that the graphs take; None where they take any, or none at all.
    """

    sequence: GraphSignature | None = None
    step: GraphSignature | None = None
    states: list[StateSignature] = Field(default_factory=list)
    max_dt: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _states_are_in_the_graphs(self) -> Signature:
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
