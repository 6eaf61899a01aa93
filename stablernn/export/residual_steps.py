"""Residual steps with fewer nodes, since a runtime pays for every node of a Scan body at every step.

The two rewrites recognize the nodes to which the exporter turns a residual step of
:class:`~stablernn.cells._step_form.StepForm`, ``h <- h + e (A h + f(K h + d))``, and leave every other graph as it is.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable

import numpy as np
import onnx
from onnx import helper, numpy_helper


class _Index:
    """Producers, uses and constants of the values of a graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.producers = {name: node for node in graph.node for name in node.output}
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.uses = Counter(name for node in graph.node for name in node.input)
        self.uses.update(value.name for value in graph.output)

    def producer(self, name: str, operation: str) -> onnx.NodeProto | None:
        """Return the node that computes a value, if it is of this operation."""
        node = self.producers.get(name)
        return node if node is not None and node.op_type == operation else None

    def array(self, name: str) -> np.ndarray | None:
        """Return the value of an initializer; None if there is none of this name."""
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def add_constant(self, name: str, value: np.ndarray) -> str:
        """Add an initializer, unless there is one of this name, and return the name."""
        if name not in self.constants:
            tensor = numpy_helper.from_array(np.ascontiguousarray(value), name)
            self.graph.initializer.append(tensor)
            self.constants[name] = self.graph.initializer[-1]
        return name

    def scaled_term(self, name: str) -> tuple[str, str, np.ndarray] | None:
        """Return value, name of the constant and constant of a product by a number that nothing else reads."""
        product = self.producer(name, "Mul")
        if product is None or self.uses[name] != 1:
            return None
        for value, constant in (product.input, reversed(product.input)):
            factor = self.array(constant)
            if factor is not None and factor.size == 1 and value not in self.constants:
                return value, constant, factor
        return None


def set_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Set the nodes of a graph, and drop the initializers that none of them reads any more."""
    remaining = list(nodes)
    del graph.node[:]
    graph.node.extend(remaining)
    drop_unused_constants(graph)


def has_control_flow(graph: onnx.GraphProto) -> bool:
    """Return whether a node holds a graph, which may read outer values by name."""
    return any(attribute.HasField("g") or attribute.graphs for node in graph.node for attribute in node.attribute)


def drop_unused_constants(graph: onnx.GraphProto) -> None:
    """Remove the initializers that no node reads."""
    names = {name for node in graph.node for name in node.input}
    tensors = [tensor for tensor in graph.initializer if tensor.name in names]
    del graph.initializer[:]
    graph.initializer.extend(tensors)


def split_linear_terms(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give the linear term of residual steps a product of its own; returns the same model.

    A cell multiplies by both matrices at once, which the exporter makes ``Split(Gemm(q, [A; K]))``, and
    ``h + e (A q + t)``. Two products, of which one adds its result to the state, take three nodes less:
    ``Gemm(q, e A, h + e t)``, with ``t = f(Gemm(q, K) + d)``.
    """
    graph = model.graph
    if has_control_flow(graph):
        return model
    index = _Index(graph)
    replacements: dict[str, list[onnx.NodeProto]] = {}
    for node in list(graph.node):
        if node.op_type == "Add":
            _split_linear_term(index, node, replacements)
    if replacements:
        set_nodes(graph, (new for node in graph.node for new in replacements.get(node.output[0], [node])))
    return model


def _split_linear_term(index: _Index, residual: onnx.NodeProto, replacements: dict[str, list[onnx.NodeProto]]) -> None:
    """Rewrite one ``Add(h, Mul(Add(a, t), e))`` where a is a half of a product; other sums are left as they are."""
    for state, term in (residual.input, reversed(residual.input)):
        scaled = index.scaled_term(term)
        velocity = None if scaled is None else index.producer(scaled[0], "Add")
        if scaled is None or velocity is None or index.uses[scaled[0]] != 1:
            continue
        for linear, activation in (velocity.input, reversed(velocity.input)):
            split = index.producer(linear, "Split")
            if split is None or index.uses[linear] != 1 or len(split.output) != 2 or len(split.input) != 1:
                continue
            product = index.producer(split.input[0], "Gemm")
            weights = None if product is None else index.array(product.input[1])
            if product is None or weights is None or len(product.input) != 2 or index.uses[split.input[0]] != 1:
                continue
            if not is_plain_product(product) or len(weights) % 2:
                continue
            _, factor_name, factor = scaled
            half = len(weights) // 2
            is_first = linear == split.output[0]
            parts = (weights[:half], weights[half:])
            linear_part, recurrent_part = parts if is_first else parts[::-1]
            recurrent = split.output[1 if is_first else 0]
            # Named after the matrix, whose first and second stage then share the initializers.
            recurrent_name = index.add_constant(f"{product.input[1]}.recurrent", recurrent_part)
            linear_name = index.add_constant(
                f"{product.input[1]}.linear.{factor_name}", (factor.reshape(()) * linear_part).astype(weights.dtype)
            )
            out = residual.output[0]
            # By the first output of the node that they replace.
            replacements[split.output[0]] = replacements[velocity.output[0]] = replacements[term] = []
            replacements[product.output[0]] = [
                helper.make_node("Gemm", [product.input[0], recurrent_name], [recurrent], transB=1)
            ]
            replacements[out] = [
                helper.make_node("Mul", [activation, factor_name], [term]),
                helper.make_node("Add", [state, term], [f"{out}.nonlinear"]),
                helper.make_node("Gemm", [product.input[0], linear_name, f"{out}.nonlinear"], [out], transB=1),
            ]
            return


def scale_states(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, float]]:
    """Return a recurrence whose residual states are divided by their step size, which saves a product of each step.

    With ``g = h / e``, the step ``h + e t`` is ``g + t``, and ``Gemm(h, K)`` is ``Gemm(g, e K)``. Only powers of two
    are taken out: multiplication by them is exact, so the bits stay those of the original, except for numbers below
    the smallest normal one or beyond the largest.

    Args:
        model: One step: inputs ``.., state_i, ..``, outputs ``state_i_out, ..``; it is not changed.

    Returns:
        The recurrence, and e by the name of each state that is scaled.
    """
    scaled_model = copy.deepcopy(model)
    graph = scaled_model.graph
    scales: dict[str, float] = {}
    if has_control_flow(graph):
        return scaled_model, scales
    inputs = {value.name for value in graph.input}
    for value in graph.output:
        state = value.name.removesuffix("_out")
        if state in inputs:
            factor = _scale_state(_Index(graph), state, value.name)
            if factor is not None:
                scales[state] = factor
    return scaled_model, scales


def _scale_state(index: _Index, state: str, output: str) -> float | None:
    """Divide one state by its step size, and return it; None, without a change, if the step has another form."""
    final = index.producers.get(output)
    residual = final
    if final is not None and final.op_type == "Gemm" and len(final.input) == 3 and final.input[0] == state:
        # h + e t + e A h: the linear term is of the unit of the state, whatever that is.
        residual = index.producers.get(final.input[2]) if index.uses[final.input[2]] == 1 else None
    if residual is None or residual.op_type != "Add" or state not in residual.input:
        return None
    term = next((name for name in residual.input if name != state), state)
    scaled = index.scaled_term(term)
    if scaled is None:
        return None
    activation, _, factor = scaled
    step_size = float(factor.reshape(()))
    if step_size == 1 or not _is_power_of_two(step_size):
        return None
    readers = [
        node
        for node in index.graph.node
        if node not in (final, residual) and (state in node.input or output in node.input)
    ]
    matrices = [index.array(node.input[1]) if _reads_as_factor(node, (state, output)) else None for node in readers]
    if any(matrix is None or not _is_scaled_exactly(matrix, step_size) for matrix in matrices):
        return None
    for node, matrix in zip(readers, matrices, strict=True):
        assert matrix is not None
        node.input[1] = index.add_constant(f"{node.input[1]}.by.{state}", (step_size * matrix).astype(matrix.dtype))
    residual.input[:] = [state, activation]
    set_nodes(index.graph, (node for node in index.graph.node if term not in node.output))
    return step_size


def _reads_as_factor(node: onnx.NodeProto, names: tuple[str, str]) -> bool:
    """Return whether a node is a product that reads the values as its first factor alone."""
    return is_plain_product(node) and node.input[0] in names and not set(names).intersection(node.input[1:])


def is_plain_product(node: onnx.NodeProto) -> bool:
    """Return whether a node is a Gemm of a row-wise left factor and a transposed matrix, without other factors."""
    if node.op_type != "Gemm":
        return False
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return (
        attributes.get("transB", 0) == 1
        and attributes.get("transA", 0) == 0
        and attributes.get("alpha", 1.0) == 1.0
        and (len(node.input) == 2 or attributes.get("beta", 1.0) == 1.0)
    )


def _is_power_of_two(value: float) -> bool:
    return value > 0 and float(np.frexp(value)[0]) == 0.5


def _is_scaled_exactly(matrix: np.ndarray, factor: float) -> bool:
    """Return whether the product is finite and can be divided again without a difference."""
    scaled = (factor * matrix).astype(matrix.dtype)
    return bool(np.isfinite(scaled).all() and np.array_equal(scaled / np.asarray(factor, matrix.dtype), matrix))
