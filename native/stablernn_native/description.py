"""The description of a model's layers that an export writes into ``step.onnx``, read and checked.

The caller has made sure that the file is a single self-contained graph, see ``stablernn_runtime.graph_safety``. Field
numbers are from ``onnx.proto``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_native.bindings import FAMILIES, NONLINEARITIES
from stablernn_runtime.errors import cut
from stablernn_runtime.graph_safety import Field, as_bytes, encode_field, read_fields, read_integers

_GRAPH, _METADATA = 7, 14  # of a model
_NODE, _GRAPH_NAME, _INITIALIZER, _INPUT, _OUTPUT = 1, 2, 5, 11, 12  # of a graph
_NODE_INPUT, _NODE_OUTPUT = 1, 2
_DIMS, _DATA_TYPE, _FLOAT_DATA, _TENSOR_NAME, _RAW_DATA = 1, 2, 4, 8, 9
_VALUE_NAME = 1
_KEY, _VALUE = 1, 2
_FLOAT = 1
Array = NDArray[Any]

KEY = "stablernn.layers"
FORMAT = 2
MAX_WINDOW = 2**24
"""Steps of a window up to which float32 counts them exactly."""
_LARGEST = float(np.finfo(np.float32).max)
_LARGEST_FORMAT = 1_000_000
"""Largest number of a format that a message repeats; the file may hold any number of digits."""
_LARGEST_CHANGE = 10.0
"""Largest distance of a logarithm from its mean among samples: a forecast from it must still fit into float32."""
READOUTS: Mapping[str, tuple[str, ...]] = {
    "last": ("last",),
    "mean": ("mean",),
    "max": ("max",),
    "all": ("last", "mean", "max"),
}
"""The parts of the head's input: the last outputs, and running statistics of all."""


class GraphFile:
    """An ONNX model.

    Args:
        content: The bytes of the file.

    Attributes:
        metadata: The entries of ``metadata_props``.

    Raises:
        ValueError: If the bytes are no model.
    """

    def __init__(self, content: bytes) -> None:
        try:
            self._fields = list(read_fields(memoryview(content)))
            self.metadata = {_text(part, _KEY): _text(part, _VALUE) for part in _parts(self._fields, _METADATA)}
            (graph,) = _parts(self._fields, _GRAPH)
            self._graph = list(read_fields(graph))
            self._tensors = {_text(part, _TENSOR_NAME): part for part in _parts(self._graph, _INITIALIZER)}
            self._constants: dict[str, Array] = {}
        except ValueError as error:
            raise ValueError("its step.onnx is not an ONNX model") from error

    def constant(self, name: str, start: int, end: int) -> Array:
        """Return some rows of an initializer in float32, as an array of their own.

        Args:
            name: Its name.
            start: First row.
            end: Row after the last one.

        Raises:
            ValueError: If there is no initializer of this name, it has another type, or no rows.
        """
        if name not in self._constants:
            self._constants[name] = self._parse(name)
        array = self._constants[name]
        if array.ndim == 0:
            raise ValueError(f"the initializer '{name}' of its step.onnx has no rows")
        # A copy, since the bytes of the file are not aligned; of these rows only, since the members of an ensemble may
        # share an initializer.
        return array[start:end].astype(np.float32)

    def _parse(self, name: str) -> Array:
        """Return an initializer, whose memory is that of the file where it is in one piece there."""
        if name not in self._tensors:
            raise ValueError(f"its step.onnx has no initializer '{name}'")
        fields = list(read_fields(self._tensors[name]))
        if _number(fields, _DATA_TYPE) != _FLOAT:
            raise ValueError(f"the initializer '{name}' of its step.onnx is not of the type float32")
        shape = list(_numbers(fields, _DIMS))
        # One of both holds the values.
        pieces = list(_parts(fields, _RAW_DATA)) or list(_parts(fields, _FLOAT_DATA))
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return np.frombuffer(data, "<f4").reshape(shape)

    def extract_model(self, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
        """Return a model of the nodes that compute some outputs of the graph from other values of it.

        Args:
            inputs: Names of values that are inputs or outputs of the graph.
            outputs: Names of outputs of the graph.
        """
        needed, nodes = set(outputs), []
        # The nodes are in topological order.
        for node in reversed(list(_parts(self._graph, _NODE))):
            fields = list(read_fields(node))
            node_outputs = {bytes(name).decode() for name in _parts(fields, _NODE_OUTPUT)}
            if node_outputs & needed and not node_outputs & set(inputs):
                nodes.append(node)
                needed.update(bytes(name).decode() for name in _parts(fields, _NODE_INPUT))
        values = {_text(value, _VALUE_NAME): value for value in _parts(self._graph, _INPUT, _OUTPUT)}
        graph = [
            *(encode_field(_NODE, node) for node in reversed(nodes)),
            encode_field(_GRAPH_NAME, b"extracted"),
            *(encode_field(_INITIALIZER, tensor) for name, tensor in self._tensors.items() if name in needed),
            *(encode_field(_INPUT, values[name]) for name in inputs if name in needed),
            *(encode_field(_OUTPUT, values[name]) for name in outputs),
        ]
        others = [encoded for number, _, _, encoded in self._fields if number not in (_GRAPH, _METADATA)]
        return b"".join([*others, encode_field(_GRAPH, b"".join(graph))])


def _parts(fields: Sequence[Field], *numbers: int) -> Iterator[memoryview]:
    for number, _, value, _ in fields:
        if number in numbers:
            yield as_bytes(value)


def _text(message: memoryview, number: int) -> str:
    return b"".join(_parts(list(read_fields(message)), number)).decode()


def _number(fields: Sequence[Field], number: int) -> int:
    return next(_numbers(fields, number), 0)


def _numbers(fields: Sequence[Field], number: int) -> Iterator[int]:
    """Yield the numbers of a repeated field."""
    return read_integers(value for other, _, value, _ in fields if other == number)


class RefusedModelError(ValueError):
    """A model that the engine does not run; the message says why and what to do."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer: the step of a family, and the product with its inputs.

    Attributes:
        family: A key of ``FAMILIES``.
        nonlinearity: A key of ``NONLINEARITIES``.
        step_size: Step size of the families that have one.
        recurrent: ``(hidden, hidden)``.
        linear: ``(hidden, hidden)``, or None.
        bias: ``(hidden,)``, or None.
        input: ``(hidden, channels)``, with a shared gate ``(2 hidden, channels)``.
        input_bias: ``(hidden,)`` or ``(2 hidden,)``, or None.
    """

    family: str
    nonlinearity: str
    step_size: float
    recurrent: Array
    linear: Array | None
    bias: Array | None
    input: Array
    input_bias: Array | None


@dataclass(frozen=True, eq=False)
class Context:
    """Scaling by the last samples: their mean, and their mean absolute seasonal difference.

    Attributes:
        window: Samples that it remembers, 2 or more.
        season: Samples of a season, less than ``window``.
        floor: ``(features,)``, the smallest values of which the logarithm is taken; None for no logarithms.
        scale_floor: Number above 0 that is added to the mean absolute seasonal difference.
        clip: Largest size of a scaled value, above 0.
    """

    window: int
    season: int
    floor: Array | None
    scale_floor: float
    clip: float


@dataclass(frozen=True, eq=False)
class Head:
    """A linear head: ``mean + scale * (weight features + bias) / temperature``.

    Attributes:
        weight: ``(outputs, parts of the readout * hidden)``.
        bias: ``(outputs,)``.
        temperature: A number above 0.
        mean: ``(outputs,)``; None for no scaling of the answers.
        scale: Likewise.
    """

    weight: Array
    bias: Array
    temperature: float
    mean: Array | None
    scale: Array | None


@dataclass(frozen=True, eq=False)
class Description:
    """A model: scaling of samples, layers, readout and head.

    Attributes:
        features: Features of a sample.
        hidden: Length of the state of each layer.
        patch: Samples of a step.
        overlap: Samples of the steps before that a step sees as well.
        end_aligned: Whether the last patch of a sequence is the complete one.
        mask_channel: Whether further channels say which values are observed.
        mean: ``(features,)``.
        scale: ``(features,)``.
        context: Scaling by the last samples, after that by mean and scale; None for none.
        members: Stacks of layers over the same channels.
        embeddings: Of each member, matrix ``(width, channels of a step)`` and bias ``(width,)`` of a linear map, which
            a GELU follows, in front of the first layer; None for none.
        layers: From input to output, member after member.
        readout: A key of :data:`READOUTS`.
        every_step: Whether a sequence has an answer at every step.
        head: None for a head that the graph computes.
    """

    features: int
    hidden: int
    patch: int
    overlap: int
    end_aligned: bool
    mask_channel: bool
    mean: Array
    scale: Array
    context: Context | None
    members: int
    embeddings: tuple[tuple[Array, Array], ...] | None
    layers: tuple[Layer, ...]
    readout: str
    every_step: bool
    head: Head | None

    @property
    def state_sizes(self) -> list[int]:
        """Lengths of the states: those of the scaling, samples that steps share, layers, and statistics."""
        # The last value of each feature; or those of the window, their count, and their mean.
        scaling = [self.features]
        if self.context is not None:
            scaling = [self.context.window * self.features, self.features, self.features]
        shared = self.overlap * self.features * (2 if self.mask_channel else 1)
        layers = [self.hidden for _ in self.layers]
        statistics = [self.members * self.hidden for part in READOUTS[self.readout] if part != "last"]
        # The statistics come with the number of outputs that they have seen.
        return [*scaling, *([shared] if shared else []), *layers, *statistics, *([1] if statistics else [])]

    def raw_values(self, scores: Array) -> Array:
        """Return standard scores of samples, ``(.., features)``, as values in the units of the data in float32."""
        # A damaged description may hold any numbers.
        with np.errstate(all="ignore"):
            changes = self.scale * scores
            if self.context is not None and self.context.floor is not None:
                values: Array = np.exp(self.mean + np.clip(changes, -_LARGEST_CHANGE, _LARGEST_CHANGE))
            else:
                values = self.mean + changes
            return values.astype(np.float32)


def read_description(file: GraphFile) -> Description:
    """Read the description of a model.

    Args:
        file: Its ``step.onnx``.

    Raises:
        RefusedModelError: If there is none, it says that the engine cannot run the model, or it contradicts itself.
    """
    if KEY not in file.metadata:
        raise RefusedModelError(
            "its step.onnx does not describe its layers, because it was exported before this engine existed. Export it "
            "again, or use --engine onnx"
        )
    try:
        document = json.loads(file.metadata[KEY])
        number = document["format"]
        if type(number) is not int or number != FORMAT:
            is_printed = type(number) is int and 0 <= number <= _LARGEST_FORMAT
            raise RefusedModelError(
                f"its step.onnx describes its layers in {f'format {number}' if is_printed else 'another format'}, "
                f"this engine reads format {FORMAT}. Export it again, install the stablernn-native that belongs to it, "
                "or use --engine onnx"
            )
        if "reason" in document:
            raise RefusedModelError(
                f"{_printable(document['reason'])}, which this engine does not run. Use --engine onnx"
            )
        return _Reader(file).description(document)
    except RefusedModelError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise RefusedModelError(
            "the description of its layers in step.onnx cannot be read. Export it again, or use --engine onnx"
        ) from error


class _Reader:
    """Reads the parts of the document, whose arrays are initializers of a file."""

    def __init__(self, file: GraphFile) -> None:
        self._file = file

    def description(self, document: Mapping[str, Any]) -> Description:
        features, hidden, patch = (_size(document, name) for name in ("features", "hidden", "patch"))
        mask_channel, every_step = _flag(document, "mask_channel"), _flag(document, "every_step")
        readout = _choice(document, "readout", READOUTS)
        overlap, members = _size(document, "overlap", least=0), _size(document, "members")
        channels = (overlap + patch) * features * (2 if mask_channel else 1)
        if document["context"] is not None:
            # The scale of each feature, and the change of its mean.
            channels += 2 * features
        stacks = document["stacks"]
        if len(stacks) != members or any(len(stack) != len(stacks[0]) for stack in stacks):
            raise ValueError("every member must have the same number of layers")
        embeddings = None
        if document["embeddings"] is not None:
            if len(document["embeddings"]) != members:
                raise ValueError("every member has an embedding, or none")
            embeddings = self._embeddings(document["embeddings"], channels)
        width = channels if embeddings is None else len(embeddings[0][1])
        layers = [layer for stack in stacks for layer in self._stack(stack, hidden, width)]
        if members > 1 and document["head"] is not None:
            raise ValueError("an ensemble must not describe a head")
        if every_step and (readout != "last" or document["head"] is None or patch != 1):
            raise RefusedModelError("its answers at every step are not those of a linear head. Use --engine onnx")
        head = None if document["head"] is None else self._head(document["head"], len(READOUTS[readout]) * hidden)
        return Description(
            features,
            hidden,
            patch,
            overlap,
            _flag(document, "end_aligned"),
            mask_channel,
            self._array(document["mean"], features),
            self._array(document["scale"], features),
            # After the layers, whose matrices prove the number of features.
            None if document["context"] is None else self._context(document["context"], features),
            members,
            embeddings,
            tuple(layers),
            readout,
            every_step,
            head,
        )

    def _context(self, document: Mapping[str, Any], features: int) -> Context:
        window, season = _size(document, "window", least=2), _size(document, "season")
        if window > MAX_WINDOW or season >= window:
            raise ValueError("a season is shorter than the window, whose steps are counted in float32")
        return Context(
            window,
            season,
            self._optional(document["floor"], features),
            _positive(document["scale_floor"]),
            _positive(document["clip"]),
        )

    def _stack(self, stack: Sequence[Mapping[str, Any]], hidden: int, width: int) -> list[Layer]:
        """Read the layers of a member, the first of which reads ``width`` channels."""
        if not stack:
            raise ValueError("a member has 1 layer or more")
        return [self._layer(layer, hidden, hidden if depth else width) for depth, layer in enumerate(stack)]

    def _layer(self, document: Mapping[str, Any], hidden: int, width: int) -> Layer:
        family = _choice(document, "family", FAMILIES)
        nonlinearity = _choice(document, "nonlinearity", NONLINEARITIES)
        columns = 2 * hidden if family == "shared gate" else hidden
        # First, since it proves the number of units.
        recurrent = self._array(document["recurrent"], hidden, hidden)
        bias = self._optional(document["bias"], hidden)
        if bias is None and nonlinearity in ("modrelu", "softshrink"):
            raise ValueError("this nonlinearity has a bias")
        linear = self._optional(document["linear"], hidden, hidden)
        if linear is not None and family in ("plain", "shared gate"):
            raise ValueError("these families have no linear matrix")
        return Layer(
            family,
            nonlinearity,
            _finite(document["step_size"]),
            recurrent,
            linear,
            bias,
            self._array(document["input"], columns, width),
            self._optional(document["input_bias"], columns),
        )

    def _embeddings(self, documents: Sequence[Mapping[str, Any]], channels: int) -> tuple[tuple[Array, Array], ...]:
        width = _rows(documents[0]["weight"])
        return tuple(
            (self._array(document["weight"], width, channels), self._array(document["bias"], width))
            for document in documents
        )

    def _head(self, document: Mapping[str, Any], inputs: int) -> Head:
        outputs = _rows(document["weight"])
        weight = self._array(document["weight"], outputs, inputs)
        mean, scale = (
            None if document[name] is None else np.array([_finite(value) for value in document[name]], np.float32)
            for name in ("mean", "scale")
        )
        if (mean is None) != (scale is None) or any(
            part is not None and len(part) != outputs for part in (mean, scale)
        ):
            raise ValueError("mean and scale are those of the answers")
        return Head(
            weight,
            self._array(document["bias"], outputs),
            _positive(document["temperature"]),
            mean,
            scale,
        )

    def _optional(self, reference: Mapping[str, Any] | None, *shape: int) -> Array | None:
        return None if reference is None else self._array(reference, *shape)

    def _array(self, reference: Mapping[str, Any], *shape: int) -> Array:
        if "fill" in reference:
            # A matrix proves its size by the initializer that holds it.
            if len(shape) > 1:
                raise ValueError("only vectors are of equal numbers")
            return np.full(shape, _finite(reference["fill"]), np.float32)
        start, end = _bounds(reference)
        values = self._file.constant(reference["initializer"], start, end)
        if values.shape != shape:
            raise ValueError(f"{reference['initializer']} has the shape {values.shape}, not {shape}")
        factor = _finite(reference["factor"])
        if factor == 1:
            return values
        scaled = factor * values.astype(np.float64)
        if np.abs(scaled).max() > _LARGEST:
            raise ValueError("numbers must fit into float32")
        return scaled.astype(np.float32)


def _size(document: Mapping[str, Any], name: str, *, least: int = 1) -> int:
    value = document[name]
    if type(value) is not int or not least <= value < 2**31:
        raise ValueError(f"{name} is a whole number of {least} or more")
    return value


def _rows(reference: Mapping[str, Any]) -> int:
    start, end = _bounds(reference)
    return end - start


def _bounds(reference: Mapping[str, Any]) -> tuple[int, int]:
    """Return the first row of an array within its initializer, and the one after the last."""
    start, end = reference["rows"]
    if type(start) is not int or type(end) is not int or not 0 <= start < end:
        raise ValueError("an array must have 1 row or more")
    return start, end


def _flag(document: Mapping[str, Any], name: str) -> bool:
    if type(document[name]) is not bool:
        raise ValueError(f"{name} is true or false")
    return bool(document[name])


def _choice(document: Mapping[str, Any], name: str, choices: Mapping[str, Any]) -> str:
    # A KeyError for another word.
    choices[document[name]]
    return str(document[name])


def _finite(value: Any) -> float:
    number = float(value)
    # False for NaN as well.
    if not abs(number) <= _LARGEST:
        raise ValueError("numbers must be finite and fit into float32")
    return number


def _positive(value: Any) -> float:
    number = _finite(value)
    # As float32, in which the kernels divide by it.
    if not np.float32(number) > 0:
        raise ValueError("this number must be above 0")
    return number


def _printable(text: Any) -> str:
    """Return a text of the file for a message: short, and without characters that steer a terminal."""
    if not isinstance(text, str):
        raise TypeError("a reason must be a text")
    return cut("".join(character for character in text[:1000] if character.isprintable()), 200)
