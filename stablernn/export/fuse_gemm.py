"""Matrix products that take what is added to them along: one node of a step less."""

from __future__ import annotations

from collections import Counter

import onnx


def with_sums(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with ``Add(Gemm(a, b), c)`` as ``Gemm(a, b, c)``, where c has the product's shape.

    The exporter makes the recurrent and the input product two nodes and their sum a third. A graph with control flow
    stays as it is.
    """
    graph = model.graph
    if any(attribute.HasField("g") or attribute.graphs for node in graph.node for attribute in node.attribute):
        return model
    shapes = {value.name: _shape(value) for value in [*graph.value_info, *graph.input, *graph.output]}
    uses = Counter(name for node in graph.node for name in node.input)
    uses.update(value.name for value in graph.output)
    products = {
        node.output[0]: node
        for node in graph.node
        if node.op_type == "Gemm" and len(node.input) == 2 and uses[node.output[0]] == 1
    }
    taken = set()
    for node in graph.node:
        if node.op_type != "Add":
            continue
        for name, added in (node.input, reversed(node.input)):
            shape = shapes.get(name)
            if name in products and shape is not None and shape == shapes.get(added):
                product = products.pop(name)
                taken.add(name)
                node.op_type = product.op_type
                node.input[:] = [*product.input, added]
                node.attribute.extend(attribute for attribute in product.attribute if attribute.name != "beta")
                break
    kept = [node for node in graph.node if node.output[0] not in taken]
    del graph.node[:]
    graph.node.extend(kept)
    return model


def _shape(value: onnx.ValueInfoProto) -> list[int | str] | None:
    """Lengths and names of the axes; None where one has neither."""
    axes = [axis.dim_value or axis.dim_param for axis in value.type.tensor_type.shape.dim]
    return axes if all(axes) else None
