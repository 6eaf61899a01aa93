"""Products of the inputs for all steps of a batch at once, in front of the Scan.

The recurrent product takes the product of the inputs along (:mod:`.fuse_gemm`), but that is still a node of every
step. For a short batch it is cheaper to compute it for all steps in one go; for a long one, the memory that the result
needs costs more than the node. The rows of a product do not depend on each other, so the bits are those of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from stablernn.export.residual_steps import drop_unused_constants, is_plain_product

MAX_ELEMENTS = 2**18
"""Numbers in the products of a batch that are computed in front of the Scan. With 128 units, a node less saves a tenth
of the time of one or two sequences of 784 steps; from eight of them on, writing and reading the products takes as
long."""
MAX_STEP_NODES = 6
"""Nodes of a step without its products up to which they are computed in front of the Scan. One of 18 nodes less, as of
``gru``, is not noticed, and the recurrence would stand in the file once more for it."""
MAX_ROWS_NAME = "unpadded.max_rows"
"""Name of the initializer that holds :attr:`InputProducts.max_rows`; only graphs that need it have it."""


@dataclass(frozen=True)
class InputProducts:
    """A recurrence that reads products of its inputs, and the nodes that compute them for whole sequences.

    Attributes:
        recurrence: One step: inputs ``[x, dt,] product_0, .., state_0, ..``, outputs ``state_0_out, ..``.
        reads_x: Whether the recurrence still reads ``x`` besides the products.
        names: Names of the products, each ``(time, batch, units)``.
        max_rows: Steps times sequences of the longest batch for which they are computed in front of the Scan.
        nodes: Nodes that compute them.
        constants: Initializers that these nodes read.
    """

    recurrence: onnx.ModelProto
    reads_x: bool
    names: list[str]
    max_rows: int
    nodes: list[onnx.NodeProto]
    constants: list[onnx.TensorProto]

    @classmethod
    def from_recurrence(cls, model: onnx.ModelProto, features: str) -> InputProducts | None:
        """Take the products of the first input out of a recurrence; None if it has none, or too many other nodes.

        Args:
            model: One step, whose first input is ``(batch, channels)``; it is not changed.
            features: Name of the channels of whole sequences, ``(batch, time, channels)``.
        """
        recurrence = onnx.ModelProto()
        recurrence.CopyFrom(model)
        graph = recurrence.graph
        x, tensors = graph.input[0], {tensor.name: tensor for tensor in graph.initializer}
        products = [
            node
            for node in graph.node
            if is_plain_product(node) and node.input[0] == x.name and all(name in tensors for name in node.input[1:])
        ]
        if not products or len(graph.node) - len(products) > MAX_STEP_NODES:
            return None
        channels = x.type.tensor_type.shape.dim[1].dim_value
        steps = [node for node in graph.node if node not in products]
        del graph.node[:]
        graph.node.extend(steps)
        reads_x = any(x.name in node.input for node in steps)
        widths = [tensors[node.input[1]].dims[0] for node in products]
        step_products = [
            helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, ["batch", width])
            for node, width in zip(products, widths, strict=True)
        ]
        inputs = [*graph.input]
        states = [value for value in inputs if f"{value.name}_out" in {output.name for output in graph.output}]
        others = [value for value in inputs if value not in states and (reads_x or value.name != x.name)]
        del graph.input[:]
        graph.input.extend([*others, *step_products, *states])
        drop_unused_constants(graph)
        nodes, constants = _product_nodes(products, tensors, widths, features, channels)
        names = [f"products.{index}" for index in range(len(products))]
        return cls(recurrence, reads_x, names, MAX_ELEMENTS // sum(widths), nodes, constants)


def _product_nodes(
    products: list[onnx.NodeProto],
    tensors: dict[str, onnx.TensorProto],
    widths: list[int],
    features: str,
    channels: int,
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Return the nodes for ``products.0, ..``, and their constants."""
    constants = [numpy_helper.from_array(np.array([-1, channels]), "products.rows_shape")]
    nodes = [
        # A Scan moves the axis over time to the front anyway; of the channels that is less than of the products.
        helper.make_node("Transpose", [features], ["products.time_first"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["products.time_first", "products.rows_shape"], ["products.rows"]),
        helper.make_node("Shape", ["products.time_first"], ["products.axes"], start=0, end=2),
    ]
    for index, (node, width) in enumerate(zip(products, widths, strict=True)):
        name = f"products.{index}"
        parameters = [f"{name}.{part}" for part, _ in zip(("weight", "bias"), node.input[1:], strict=False)]
        for parameter, original in zip(parameters, node.input[1:], strict=True):
            constants.append(numpy_helper.from_array(numpy_helper.to_array(tensors[original]), parameter))
        constants.append(numpy_helper.from_array(np.array([width]), f"{name}.width"))
        nodes += [
            helper.make_node("Gemm", ["products.rows", *parameters], [f"{name}.rows"], transB=1),
            helper.make_node("Concat", ["products.axes", f"{name}.width"], [f"{name}.shape"], axis=0),
            # (time, batch, units)
            helper.make_node("Reshape", [f"{name}.rows", f"{name}.shape"], [name]),
        ]
    return nodes, constants
