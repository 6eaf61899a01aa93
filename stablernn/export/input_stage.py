"""Scaling and imputation of missing values as ONNX nodes in front of the recurrence.

A runtime pays for every node in the body of a Scan at every step, however little it computes. Standard scaling is
elementwise and a missing value repeats the previous one, so both are done for a whole sequence at once, before the
Scan. The operations and operands are those of a step, so the results are equal to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from stablernn.nn.models import SequenceModel

_BOOL = TensorProto.BOOL
STATE = "state_0"
"""The last observed value of each feature, scaled, ``(batch, F)``: the only state of the input stage."""


@dataclass
class GraphFragment:
    """Nodes and constants to be inserted into a graph.

    Attributes:
        features: Name of the resulting value: the channels that the first layer reads.
        nodes: Nodes in topological order.
        constants: Initializers that the nodes read.
    """

    features: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, operation: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Append a node and return the name of its output."""
        self.nodes.append(helper.make_node(operation, inputs, [output], **attributes))
        return output

    def split(self, value: str, count: int, name: str) -> list[str]:
        """Append a node that splits a value along its second axis, and return the names of the pieces."""
        outputs = [f"{name}.{index}" for index in range(count)]
        self.nodes.append(helper.make_node("Split", [value], outputs, axis=1, num_outputs=count))
        return outputs

    def constant(self, name: str, value: np.ndarray) -> str:
        """Append an initializer and return its name."""
        self.constants.append(numpy_helper.from_array(value, name))
        return name


@dataclass(frozen=True, eq=False)
class InputStage:
    """A :class:`~stablernn.nn.preprocessing.Scaling` as graph nodes.

    It maps raw samples and ``state_0`` to channels and the next state, and computes the same as ``Scaling.step``; a
    test compares the two.

    Attributes:
        mean: Mean of each feature, ``(F,)``.
        scale: Scale of each feature, ``(F,)``.
        mask_channel: Whether F additional channels mark the observed values.
        keep_missing: Whether a missing value stays NaN in the channels.
        stride: Samples per patch; 0 if a step takes a single sample.
    """

    mean: np.ndarray
    scale: np.ndarray
    mask_channel: bool
    keep_missing: bool
    stride: int

    @classmethod
    def from_model(cls, model: SequenceModel) -> InputStage | None:
        """Return the input stage of a model; None if scaling has to stay inside the recurrence.

        That is so if scaling uses running statistics, if patches overlap and therefore share samples, or if the output
        at every step is relative to the last observed value.
        """
        scaling, patches = model.scaling, model.patches
        if scaling.kind not in ("standard", "none") or patches.size != patches.stride or model.predict_change:
            return None
        # Copies, because the arrays would share memory with the buffers of the model.
        stride = 0 if patches.size == 1 else patches.stride
        mean, scale = scaling.mean.numpy().copy(), scaling.scale.numpy().copy()
        return cls(mean, scale, scaling.mask_channel, scaling.keep_missing, stride)

    def for_step(self) -> GraphFragment:
        """Return the nodes for one step, without control flow.

        They read ``x`` of shape (batch, F) or, for a patch, (batch, stride, F).
        """
        fragment = GraphFragment()
        missing, scaled = self._scale(fragment, "x")
        if not self.stride:
            filled = fragment.add("Where", [missing, STATE, scaled], f"{STATE}_out")
            fragment.features = self._channels(fragment, filled, missing)
            return fragment
        axis = fragment.constant("intake.axis", np.array([1]))
        # (batch, 1, F), as the samples that the patch is split into.
        last_value = fragment.add("Unsqueeze", [STATE, axis], "intake.before")
        gaps = fragment.split(missing, self.stride, "intake.gap")
        values = fragment.split(scaled, self.stride, "intake.value")
        filled_samples: list[str] = []
        for gap, value in zip(gaps, values, strict=True):
            last_value = fragment.add("Where", [gap, last_value, value], f"intake.held.{len(filled_samples)}")
            filled_samples.append(last_value)
        fragment.add("Squeeze", [last_value, axis], f"{STATE}_out")
        samples = fragment.add("Concat", filled_samples, "intake.filled", axis=1)
        fragment.features = self._patches(fragment, self._channels(fragment, samples, missing), has_time=False)
        return fragment

    def for_sequence(self, x: str, *, ends: str = "", valid: str = "") -> GraphFragment:
        """Return the nodes for all steps of a batch of sequences.

        Args:
            x: Name of the raw samples ``(batch, time, F)``, in whole patches.
            ends: Name of the number of valid samples, int64 ``(batch,)``; all samples are valid if empty.
            valid: Name of the mask of valid samples, ``(batch, time, 1)``; all samples are valid if empty.
        """
        fragment = GraphFragment()
        axis = fragment.constant("intake.axis", np.array([1]))
        missing, scaled = self._scale(fragment, x)
        gaps = fragment.add("And", [missing, valid], "intake.gaps") if valid else missing
        has_gaps = fragment.add("ReduceMax", [gaps], "intake.some", keepdims=0)
        # Data without gaps skips the Scan over time.
        filled = fragment.add(
            "If",
            [has_gaps],
            "intake.filled",
            then_branch=self._fill_branch(missing, scaled),
            else_branch=self._pass_branch(scaled),
        )
        if ends:
            # A sequence without samples keeps its initial state.
            zero, unit = fragment.constant("intake.zero", np.array(0)), fragment.constant("intake.one", np.array(1))
            last = fragment.add(
                "Max", [fragment.add("Sub", [ends, unit], "intake.before_end"), zero], "intake.last_place"
            )
            last_index = fragment.add("Unsqueeze", [last, axis], "intake.last_places")
            last_value = fragment.add("GatherND", [filled, last_index], "intake.reached", batch_dims=1)
            has_samples = fragment.add("Greater", [ends, zero], "intake.some_samples")
            # (batch, 1), to broadcast over the features.
            has_samples_column = fragment.add("Unsqueeze", [has_samples, axis], "intake.begun")
            fragment.add("Where", [has_samples_column, last_value, STATE], f"{STATE}_out")
        else:
            fragment.add("Gather", [filled, fragment.constant("intake.end", np.array(-1))], f"{STATE}_out", axis=1)
        fragment.features = self._channels(fragment, filled, missing)
        if self.stride:
            fragment.features = self._patches(fragment, fragment.features, has_time=True)
        return fragment

    def _patches(self, fragment: GraphFragment, samples: str, *, has_time: bool) -> str:
        """Concatenate the channels of the samples of each patch."""
        channels = self.stride * len(self.mean) * (2 if self.mask_channel else 1)
        shape = fragment.constant("intake.patch", np.array([0, -1, channels] if has_time else [0, channels]))
        return fragment.add("Reshape", [samples, shape], "intake.patches")

    def _scale(self, fragment: GraphFragment, x: str) -> tuple[str, str]:
        """Return the mask of missing values and the standard scores of the others."""
        missing = fragment.add("IsNaN", [x], "intake.missing")
        distance = fragment.add("Sub", [x, fragment.constant("intake.mean", self.mean)], "intake.distance")
        return missing, fragment.add("Div", [distance, fragment.constant("intake.scale", self.scale)], "intake.scaled")

    def _channels(self, fragment: GraphFragment, filled: str, missing: str) -> str:
        """Return the channels of filled samples: missing values restored and mask channels appended, if configured."""
        if self.keep_missing:
            nan = fragment.constant("intake.nan", np.array(np.nan, np.float32))
            filled = fragment.add("Where", [missing, nan, filled], "intake.left_missing")
        if not self.mask_channel:
            return filled
        observed = fragment.add("Not", [missing], "intake.observed")
        mask = fragment.add("Cast", [observed], "intake.mask", to=TensorProto.FLOAT)
        return fragment.add("Concat", [filled, mask], "intake.channels", axis=-1)

    def _fill_branch(self, missing: str, scaled: str) -> onnx.GraphProto:
        """Return the branch for data with gaps: each missing value repeats the previous one of its feature."""
        last_value, value, gap = (_batch_info(name, self.mean) for name in ("held", "value", "gap"))
        gap.type.tensor_type.elem_type = _BOOL
        body = helper.make_graph(
            [
                helper.make_node("Where", ["gap", "held", "value"], ["held_out"]),
                helper.make_node("Identity", ["held_out"], ["filled"]),
            ],
            "hold",
            [last_value, value, gap],
            [_batch_info("held_out", self.mean), _batch_info("filled", self.mean)],
        )
        scan = helper.make_node(
            "Scan",
            [STATE, scaled, missing],
            ["intake.last", "intake.held_on"],
            body=body,
            num_scan_inputs=2,
            scan_input_axes=[1, 1],
            scan_output_axes=[1],
        )
        return helper.make_graph([scan], "fill", [], [self._sequence_info("intake.held_on")])

    def _pass_branch(self, scaled: str) -> onnx.GraphProto:
        """Return the branch for data without missing values."""
        identity = helper.make_node("Identity", [scaled], ["intake.as_it_is"])
        return helper.make_graph([identity], "pass", [], [self._sequence_info("intake.as_it_is")])

    def _sequence_info(self, name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", None, len(self.mean)])


def _batch_info(name: str, features: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", len(features)])
