"""Fewer ONNX nodes for the same numbers: sums that a matrix product takes along, and nodes that change nothing."""

from __future__ import annotations

from collections import Counter

import onnx
from onnx import helper, numpy_helper

from stablernn.export.residual_steps import drop_unused_constants


def fuse_sums(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace ``Add(Gemm(a, b), c)`` by ``Gemm(a, b, c)`` if c has the shape of the product; returns the same model.

    The exporter makes the recurrent product, the input product and their sum three nodes. A graph with control flow is
    not changed.
    """
    graph = model.graph
    # Nested graphs may read outer values by name, which the use counts below would miss.
    if any(attribute.HasField("g") or attribute.graphs for node in graph.node for attribute in node.attribute):
        return model
    shapes = {value.name: _shape(value) for value in [*graph.value_info, *graph.input, *graph.output]}
    uses = Counter(name for node in graph.node for name in node.input)
    uses.update(value.name for value in graph.output)
    # A product that something else reads too must stay a node of its own.
    products = {
        node.output[0]: node
        for node in graph.node
        if node.op_type == "Gemm" and len(node.input) == 2 and uses[node.output[0]] == 1
    }
    fused_names = set()
    for node in graph.node:
        if node.op_type != "Add":
            continue
        for name, addend in (node.input, reversed(node.input)):
            shape = shapes.get(name)
            # Gemm would broadcast its third input, so a sum that broadcasts the product itself cannot be fused.
            if name in products and shape is not None and shape == shapes.get(addend):
                product = products.pop(name)
                fused_names.add(name)
                # The sum becomes the product, so that the nodes stay in topological order.
                node.op_type = product.op_type
                node.input[:] = [*product.input, addend]
                node.attribute.extend(attribute for attribute in product.attribute if attribute.name != "beta")
                break
    remaining_nodes = [node for node in graph.node if node.output[0] not in fused_names]
    del graph.node[:]
    graph.node.extend(remaining_nodes)
    return model


def drop_identities(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove nodes whose output is their input: a split into one part, and an axis that is added and taken away.

    The exporter leaves them where a model has one member. Returns the same model; a graph with control flow is not
    changed.
    """
    graph = model.graph
    if any(attribute.HasField("g") or attribute.graphs for node in graph.node for attribute in node.attribute):
        return model
    # Values that are the same as others, by name. Inputs of the graph keep their names, and so do outputs.
    names: dict[str, str] = {}
    outputs = {value.name for value in graph.output}
    fixed_names = outputs | {value.name for value in [*graph.input, *graph.initializer]}
    producers = {name: node for node in graph.node for name in node.output}
    uses = Counter(name for node in graph.node for name in node.input)
    dropped: list[onnx.NodeProto] = []
    for node in graph.node:
        source, nodes = _identity_source(node, producers, {tensor.name: tensor for tensor in graph.initializer})
        if source is None or any(uses[name] > 1 for inner in nodes[1:] for name in inner.output):
            continue
        if node.output[0] in outputs:
            if source in fixed_names or uses[source] > 1:
                continue
            names[source] = node.output[0]
        else:
            names[node.output[0]] = source
        dropped += nodes
    remaining_nodes = [node for node in graph.node if node not in dropped]
    for node in remaining_nodes:
        node.input[:] = [_resolve(names, name) for name in node.input]
        node.output[:] = [_resolve(names, name) for name in node.output]
    del graph.node[:]
    graph.node.extend(remaining_nodes)
    drop_unused_constants(graph)
    return model


def _identity_source(
    node: onnx.NodeProto, producers: dict[str, onnx.NodeProto], constants: dict[str, onnx.TensorProto]
) -> tuple[str | None, list[onnx.NodeProto]]:
    """Return the value that a node passes on, and the nodes that do nothing else; no value if it computes something."""
    if node.op_type == "Split" and len(node.output) == 1:
        return node.input[0], [node]
    inner = producers.get(node.input[0]) if node.op_type == "Gather" else None
    if inner is None or inner.op_type != "Unsqueeze" or not {inner.input[1], node.input[1]} <= constants.keys():
        return None, []
    axes = numpy_helper.to_array(constants[inner.input[1]]).tolist()
    index = numpy_helper.to_array(constants[node.input[1]])
    axis = next((helper.get_attribute_value(part) for part in node.attribute if part.name == "axis"), 0)
    is_identity = axes == [axis] and index.shape == () and int(index) == 0
    return (inner.input[0], [node, inner]) if is_identity else (None, [])


def _resolve(names: dict[str, str], name: str) -> str:
    while name in names:
        name = names[name]
    return name


def _shape(value: onnx.ValueInfoProto) -> list[int | str] | None:
    """Return the lengths or names of the axes; None if an axis has neither."""
    axes = [axis.dim_value or axis.dim_param for axis in value.type.tensor_type.shape.dim]
    return axes if all(axes) else None
