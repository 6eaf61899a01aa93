"""A checker of certificates that shares no code with the package: it reads ``step.onnx`` and ``certificate.json``.

    python tests/bounds/independent_check.py FOLDER
    python tests/bounds/independent_check.py REGISTRY/models/NAME/versions/N.json

A step ``h <- F h + G w``, ``w = f(V h + D w + input)`` contracts by ``r`` in the norm ``|T e|`` if multipliers ``L``,
not negative and equal within each group of coordinates on which ``f`` acts together, make the matrix of
:func:`inequality` positive semidefinite. The four matrices are those of the exported graph: every nonlinearity is cut
out of it, after which its nodes compute an affine map, whose columns are its outputs for unit vectors. The
certificate gives ``T``, ``L`` and ``r``.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

Matrix = npt.NDArray[Any]

LINEAR = (
    "Add",
    "Cast",
    "Concat",
    "Div",
    "Gemm",
    "Identity",
    "MatMul",
    "Mul",
    "Neg",
    "Reshape",
    "Slice",
    "Split",
    "Sub",
)
"""Operations that are affine in one of their inputs while the others are fixed."""
MODULUS = ("Sqrt", ("Add", ("Mul", ("Add", ("Pow", "real", "two"), ("Pow", "imaginary", "two")), "scale"), "tiny"))
MODRELU = {
    "real": ("Mul", ("Sign", "argument"), ("Relu", ("Add", ("Abs", "argument"), "bias"))),
    "complex": (
        "Mul",
        "argument",
        ("Div", ("Relu", ("Add", ("Mul", MODULUS, "unscale"), "bias")), ("Add", ("Mul", MODULUS, "unscale"), "offset")),
    ),
}
"""Graphs of modReLU; words are tensors. Its slopes are within 0 to 1 if no bias is greater than the offset."""


class NotCoveredError(Exception):
    """The rate is proved by other means than a matrix inequality, or the graph has operations that are not known."""


@dataclass(frozen=True)
class Step:
    """A step as it is read from a graph; the groups number the coordinates on which ``f`` acts together."""

    F: Matrix
    G: Matrix
    V: Matrix
    D: Matrix
    groups: list[int]


def inequality(F: Matrix, G: Matrix, V: Matrix, D: Matrix, T: Matrix, L: Matrix, r: Any) -> Matrix:
    """Return the matrix, of floats or of fractions, whichever its arguments hold."""
    form, weights = T.T @ T, np.diag(L)
    corner = 2 * weights - weights @ D - D.T @ weights - G.T @ form @ G
    side = -F.T @ form @ G - V.T @ weights
    return np.block([[r * r * form - F.T @ form @ F, side], [side.T, corner]])


def holds_in_float64(matrix: Matrix) -> bool:
    """Return whether no eigenvalue is negative by more than rounding, the diagonal scaled to ones."""
    scale = np.sqrt(np.maximum(np.diagonal(matrix), 1e-300))
    return bool(np.linalg.eigvalsh(matrix / scale / scale[:, None])[0] >= -1e-9)


def holds_exactly(matrix: Matrix) -> bool:
    """Return whether a matrix of fractions is positive semidefinite: no pivot of its elimination is negative."""
    rest = [list(row) for row in matrix]
    for pivot_row in range(len(rest)):
        pivot = rest[pivot_row][pivot_row]
        below = range(pivot_row + 1, len(rest))
        if pivot < 0 or (pivot == 0 and any(rest[pivot_row][column] for column in below)):
            return False
        for row in below:
            factor = rest[row][pivot_row] / pivot if pivot else Fraction(0)
            for column in below if factor else ():
                rest[row][column] -= factor * rest[pivot_row][column]
    return True


def exact(matrix: Matrix) -> Matrix:
    """Return the numbers of a float64 array as fractions."""
    fractions = np.array([Fraction(float(number)) for number in matrix.ravel()], dtype=object)
    return fractions.reshape(matrix.shape)


def are_allowed(L: Sequence[float], groups: Sequence[int]) -> bool:
    """Return whether no multiplier is negative, and those of each group are the same."""
    of_group: dict[int, float] = {}
    return all(l >= 0 and of_group.setdefault(group, l) == l for l, group in zip(L, groups, strict=True))


def read_step(model: onnx.ModelProto, states: Sequence[str]) -> Step:
    """Return the step of the states of one layer.

    Args:
        model: The graph of a step, which is not changed.
        states: Names of the state tensors, one after the other.

    Raises:
        NotCoveredError: If the graph is not affine between nonlinearities of slopes within 0 to 1.
    """
    graph = _Graph(model)
    neurons = graph.cut(states)
    return graph.matrices(states, neurons)


def read_norms(certificate: Mapping[str, Any]) -> Iterator[tuple[list[str], Matrix | None, Matrix]]:
    """Yield states, metric (None for the identity) and multipliers of each layer of a certificate.

    Raises:
        NotCoveredError: If the rate of a layer was proved in another way.
    """
    if not certificate["metrics"]:
        raise NotCoveredError("no rate, or one that follows from the form of the step")
    seen: set[str] = set()
    for entry in certificate["metrics"]:
        if seen.intersection(entry["states"]):
            # Further norms of a layer serve other claims.
            continue
        seen.update(entry["states"])
        if entry["norm"].endswith("linf"):
            raise NotCoveredError(f"a rate in the norm {entry['norm']}")
        if "multipliers" not in entry:
            raise NotCoveredError("a rate that is proved without multipliers")
        metric = None
        if "matrix" in entry:
            content = np.frombuffer(base64.b64decode(entry["matrix"]["float32_base64"]), dtype="<f4")
            metric = content.reshape(entry["matrix"]["shape"]).astype(np.float64)
        # A proof of neurons that were scaled is one of the neurons of the graph, with other multipliers.
        scale = np.array(entry.get("neuron_scale", 1.0), dtype=np.float64)
        yield entry["states"], metric, scale**2 * np.array(entry["multipliers"], dtype=np.float64)


def read_files(path: Path) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return the graph of a step and the certificate of a folder, or of a manifest in a registry."""
    names = ("step.onnx", "certificate.json")
    if path.is_dir():
        contents = [(path / name).read_bytes() for name in names]
    else:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        hashes = [files[name]["sha256"] for name in names]
        blobs = path.parents[3] / "blobs" / "sha256"
        contents = [(blobs / digest[:2] / digest).read_bytes() for digest in hashes]
    return onnx.load_from_string(contents[0]), json.loads(contents[1])


def check(path: Path) -> list[tuple[list[str], bool]]:
    """Return the states of each layer, and whether the rate of the certificate holds for it.

    Args:
        path: As :func:`read_files` takes it.

    Raises:
        NotCoveredError: If a rate cannot be checked.
    """
    model, certificate = read_files(path)
    if certificate["time"]["steps"] != "regular":
        raise NotCoveredError("steps of irregular time")
    results = []
    for states, metric, multipliers in read_norms(certificate):
        step = read_step(model, states)
        T = np.eye(len(step.F)) if metric is None else metric
        matrix = inequality(step.F, step.G, step.V, step.D, T, multipliers, certificate["contraction_rate"])
        results.append((states, are_allowed(multipliers.tolist(), step.groups) and holds_in_float64(matrix)))
    return results


@dataclass(frozen=True)
class _Neurons:
    """Nonlinearities that act alike: the tensors of their arguments and of their results."""

    argument: str
    result: str
    is_complex: bool = False


class _Graph:
    """The graph of a step in float64, whose nonlinearities can be cut out."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = onnx.ModelProto()
        self._model.CopyFrom(model)
        self._graph = self._model.graph
        _to_float64(self._graph)
        self._constants = {one.name: numpy_helper.to_array(one) for one in self._graph.initializer}
        self._producers = {name: node for node in self._graph.node for name in node.output}

    def cut(self, states: Sequence[str]) -> list[_Neurons]:
        """Return the nonlinearities between states and next states in the order in which they are computed."""
        varying = set(states)
        for node in self._graph.node:
            if varying.intersection(node.input) and node.op_type != "Shape":
                varying.update(node.output)
        inside: set[str] = set()
        found = []
        # From the end, so that an activation is recognized before its parts are met.
        for node in reversed(self._between(states, varying)):
            if inside.intersection(node.output):
                continue
            neurons = self._neurons(node, varying)
            if neurons is not None:
                found.append(neurons)
                inside.update(self._parts(node, neurons.argument))
            elif not _is_linear(node, varying):
                raise NotCoveredError(f"the operation {node.op_type}")
        return found[::-1]

    def matrices(self, states: Sequence[str], neurons: Sequence[_Neurons]) -> Step:
        """Return the affine map that is left once the results of the nonlinearities are inputs."""
        cut_off = {one.result for one in neurons}
        nodes = [node for node in self._graph.node if not cut_off.intersection(node.output)]
        inputs = [one.name for one in self._graph.input]
        outputs = [f"{name}_out" for name in states] + [one.argument for one in neurons]
        graph = onnx.helper.make_graph(
            _needed(nodes, outputs),
            "affine",
            [_any_tensor(name) for name in [*inputs, *cut_off]],
            [_any_tensor(name) for name in dict.fromkeys(outputs)],
            list(self._graph.initializer),
        )
        model = onnx.helper.make_model(graph, opset_imports=self._model.opset_import)
        evaluator = ReferenceEvaluator(model)
        free = [*states, *(one.result for one in neurons)]
        widths = [self._width(name) for name in free]
        total = sum(widths)
        rows = np.vstack([np.zeros(total), np.eye(total)])
        feeds = {one.name: self._ones(one, total + 1) for one in self._graph.input}
        feeds |= dict(zip(free, np.split(rows, np.cumsum(widths)[:-1], axis=1), strict=True))
        values = dict(zip([one.name for one in graph.output], evaluator.run(None, feeds), strict=True))
        answers = np.hstack([np.broadcast_to(values[name], (total + 1, values[name].shape[-1])) for name in outputs])
        columns = (answers[1:] - answers[0]).T
        size = sum(self._width(name) for name in states)
        groups: list[int] = []
        for one in neurons:
            width = self._width(one.result)
            first = max(groups, default=-1) + 1
            groups += [first + number % (width // 2 if one.is_complex else width) for number in range(width)]
        return Step(columns[:size, :size], columns[:size, size:], columns[size:, :size], columns[size:, size:], groups)

    def _between(self, states: Sequence[str], varying: set[str]) -> list[onnx.NodeProto]:
        """Return the nodes on the way from the states to the next ones, in order."""
        nodes = _needed(self._graph.node, [f"{name}_out" for name in states])
        return [node for node in nodes if varying.intersection(node.output)]

    def _neurons(self, node: onnx.NodeProto, varying: set[str]) -> _Neurons | None:
        for kind, pattern in MODRELU.items():
            words: dict[str, str] = {}
            if self._match(node.output[0], pattern, words):
                self._check_modrelu(words)
                return _Neurons(words["argument"], node.output[0], kind == "complex")
        if node.op_type in ("Tanh", "Relu") and node.input[0] in varying:
            return _Neurons(node.input[0], node.output[0])
        return None

    def _match(self, name: str, pattern: Any, words: dict[str, str]) -> bool:
        """Return whether a tensor is computed as a pattern says, and note which tensors its words are."""
        if isinstance(pattern, str):
            return words.setdefault(pattern, name) == name
        node = self._producers.get(name)
        if node is not None and node.op_type == "Concat" and len(set(node.input)) == 1:
            # The same factors for real and imaginary parts.
            return self._match(node.input[0], pattern, words)
        if node is None or node.op_type != pattern[0]:
            return False
        orders = [list(node.input)]
        if node.op_type in ("Add", "Mul"):
            orders.append(list(node.input)[::-1])
        for order in orders:
            trial = dict(words)
            if all(self._match(*pair, trial) for pair in zip(order, pattern[1:], strict=True)):
                words |= trial
                return True
        return False

    def _check_modrelu(self, words: Mapping[str, str]) -> None:
        """Refuse other constants than those with which modReLU has slopes within 0 to 1."""
        bias = self._constants.get(words["bias"])
        offset = 0.0
        if "real" in words:
            split, other = (self._producers.get(words[part]) for part in ("real", "imaginary"))
            is_split = split is not None and split is other and split.op_type == "Split"
            if not is_split or split.input[0] != words["argument"]:
                raise NotCoveredError("an activation that is not of the two halves of its argument")
            two, scale, unscale, tiny, offset = (
                float(self._constants[words[word]]) for word in ("two", "scale", "unscale", "tiny", "offset")
            )
            if two != 2 or abs(scale * unscale**2 - 1) > 1e-6 or tiny < 0 or offset < 0:
                raise NotCoveredError("an activation of complex units that is not modReLU")
        if bias is None or (bias > offset).any():
            raise NotCoveredError("a modReLU whose bias is too large")

    def _parts(self, node: onnx.NodeProto, argument: str) -> set[str]:
        """Return the tensors of which an activation is computed, up to its argument."""
        parts: set[str] = set()
        open_names = [name for name in node.input if name != argument]
        while open_names:
            name = open_names.pop()
            producer = self._producers.get(name)
            if producer is not None and name not in parts:
                parts.add(name)
                open_names += [one for one in producer.input if one != argument]
        return parts

    def _ones(self, one: onnx.ValueInfoProto, batch: int) -> Matrix:
        return np.ones([batch, *(dim.dim_value for dim in one.type.tensor_type.shape.dim[1:])])

    def _width(self, name: str) -> int:
        """Return the length of a tensor of the step, per row of the batch."""
        for one in self._graph.input:
            if one.name == name:
                return int(one.type.tensor_type.shape.dim[-1].dim_value)
        return self._widths[name]

    @cached_property
    def _widths(self) -> dict[str, int]:
        """Lengths of the tensors that nodes compute."""
        feeds = {one.name: self._ones(one, 1) for one in self._graph.input}
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        names = [name for node in self._graph.node for name in node.output]
        del model.graph.output[:]
        model.graph.output.extend(_any_tensor(name) for name in names)
        values = ReferenceEvaluator(model).run(None, feeds)
        return {name: np.shape(value)[-1] for name, value in zip(names, values, strict=True) if np.ndim(value)}


def _needed(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """Return the nodes of which outputs are computed, in order."""
    names, needed = set(outputs), []
    for node in reversed(nodes):
        if names.intersection(node.output):
            names.update(node.input)
            needed.append(node)
    return needed[::-1]


def _is_linear(node: onnx.NodeProto, varying: set[str]) -> bool:
    """Return whether a node is affine in those of its inputs that vary."""
    are_varying = [name in varying for name in node.input]
    if node.op_type == "Where":
        return not are_varying[0]
    if node.op_type in ("Mul", "MatMul"):
        return sum(are_varying) == 1
    if node.op_type in ("Div", "Slice", "Split", "Reshape"):
        return not any(are_varying[1:])
    if node.op_type == "Gemm":
        return sum(are_varying[:2]) <= 1
    return node.op_type in LINEAR


def _to_float64(graph: onnx.GraphProto) -> None:
    """Turn all floats of a graph into float64."""
    for one in graph.initializer:
        if one.data_type == onnx.TensorProto.FLOAT:
            one.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(one).astype(np.float64), one.name))
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.DOUBLE
            if attribute.HasField("t") and attribute.t.data_type == onnx.TensorProto.FLOAT:
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float64)))


def _any_tensor(name: str) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, None)


def main() -> None:
    try:
        results = check(Path(sys.argv[1]))
    except NotCoveredError as reason:
        raise SystemExit(f"not covered: {reason}") from None
    for states, holds in results:
        print(f"{', '.join(states)}: {'verified' if holds else 'NOT verified'}")
    raise SystemExit(not all(holds for _, holds in results))


if __name__ == "__main__":
    main()
