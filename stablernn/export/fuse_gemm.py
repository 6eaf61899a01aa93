"""Fusion of a matrix product and a following sum into one ONNX node, which makes a step one node shorter."""

from __future__ import annotations

from collections import Counter

import onnx


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


def _shape(value: onnx.ValueInfoProto) -> list[int | str] | None:
    """Return the lengths or names of the axes; None if an axis has neither."""
    axes = [axis.dim_value or axis.dim_param for axis in value.type.tensor_type.shape.dim]
    return axes if all(axes) else None
