"""Scaling and missing values as ONNX nodes of their own, in front of the recurrence, where they need no step by step.

A runtime pays for every node in the body of a Scan at every step, however little it computes. Standard scaling is
elementwise and a missing value repeats the one before it, so both are done for a whole sequence at once, before the
Scan. These are the operations of a step on the same numbers, and give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from stablernn.nn.models import SequenceModel, SequencePredictor
from stablernn.nn.preprocessing import Scaling

_BOOL = TensorProto.BOOL
STATE = "state_0"
"""The last observed value of each feature, scaled, ``(batch, F)``: the one state of the intake."""


@dataclass
class Part:
    """A piece of a graph.

    Attributes:
        features: Name of the value that it is for: the channels that the first layer sees.
        nodes: In order.
        constants: Initializers that the nodes read.
    """

    features: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, operation: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Append a node; returns the name of its output."""
        self.nodes.append(helper.make_node(operation, inputs, [output], **attributes))
        return output

    def split(self, value: str, count: int, name: str) -> list[str]:
        """Append a node that cuts a value along its second axis; returns the names of the pieces."""
        pieces = [f"{name}.{place}" for place in range(count)]
        self.nodes.append(helper.make_node("Split", [value], pieces, axis=1, num_outputs=count))
        return pieces

    def constant(self, name: str, value: np.ndarray) -> str:
        """Append an initializer; returns its name."""
        self.constants.append(numpy_helper.from_array(value, name))
        return name


@dataclass(frozen=True, eq=False)
class Intake:
    """A :class:`~stablernn.nn.preprocessing.Scaling` of ``x``: raw samples and ``state_0`` to channels and the next.

    What ``Scaling.step`` computes, this does, and a test holds the two against each other.

    Attributes:
        mean: Of each feature, ``(F,)``.
        scale: Of each feature, ``(F,)``.
        mask_channel: Whether F further channels tell which values were observed.
        keep_missing: Whether a missing value stays NaN in the channels.
        stride: Samples of a patch; 0 where a step takes a single one.
    """

    mean: np.ndarray
    scale: np.ndarray
    mask_channel: bool
    keep_missing: bool
    stride: int

    @classmethod
    def of(cls, model: SequenceModel) -> Intake | None:
        """What stands in front of this model's recurrence; None where it is part of that.

        So it is where scaling follows a series by running statistics, where patches overlap and one is made of the
        samples of another, and where the answer at every step starts from the last observed value there.
        """
        scaling, patches = model.scaling, model.patches
        anchored = isinstance(model, SequencePredictor) and model.predict_change
        if type(scaling) is not Scaling or patches.size != patches.stride or anchored:
            return None
        stride = 0 if patches.size == 1 else patches.stride
        mean, scale = scaling.mean.numpy().copy(), scaling.scale.numpy().copy()
        return cls(mean, scale, scaling.mask_channel, scaling.keep_missing, stride)

    def of_step(self) -> Part:
        """For one step: reads ``x`` (batch, F), or a patch of samples (batch, stride, F). No control flow."""
        part = Part()
        missing, scaled = self._scaled(part, "x")
        if not self.stride:
            held = part.add("Where", [missing, STATE, scaled], f"{STATE}_out")
            part.features = self._channels(part, held, missing)
            return part
        axis = part.constant("intake.axis", np.array([1]))
        held = part.add("Unsqueeze", [STATE, axis], "intake.before")
        pieces = zip(
            part.split(missing, self.stride, "intake.gap"), part.split(scaled, self.stride, "intake.value"), strict=True
        )
        filled: list[str] = []
        for gap, value in pieces:
            held = part.add("Where", [gap, held, value], f"intake.held.{len(filled)}")
            filled.append(held)
        part.add("Squeeze", [held, axis], f"{STATE}_out")
        samples = part.add("Concat", filled, "intake.filled", axis=1)
        part.features = self._patches(part, self._channels(part, samples, missing), time=False)
        return part

    def of_sequence(self, x: str, *, ends: str = "", valid: str = "") -> Part:
        """For all steps of sequences at once.

        Args:
            x: Raw samples ``(batch, time, F)``, in whole patches.
            ends: int64 ``(batch,)``, how many samples of each count; all when empty.
            valid: ``(batch, time, 1)``, which samples count; all when empty.
        """
        part = Part()
        axis = part.constant("intake.axis", np.array([1]))
        missing, scaled = self._scaled(part, x)
        gaps = part.add("And", [missing, valid], "intake.gaps") if valid else missing
        some = part.add("ReduceMax", [gaps], "intake.some", keepdims=0)
        filled = part.add(
            "If", [some], "intake.filled", then_branch=self._filled(missing, scaled), else_branch=self._whole(scaled)
        )
        if ends:
            # A sequence of no samples ends with the value that it goes on from.
            zero, one = part.constant("intake.zero", np.array(0)), part.constant("intake.one", np.array(1))
            last = part.add("Max", [part.add("Sub", [ends, one], "intake.before_end"), zero], "intake.last_place")
            place = part.add("Unsqueeze", [last, axis], "intake.last_places")
            reached = part.add("GatherND", [filled, place], "intake.reached", batch_dims=1)
            some_samples = part.add("Greater", [ends, zero], "intake.some_samples")
            begun = part.add("Unsqueeze", [some_samples, axis], "intake.begun")
            part.add("Where", [begun, reached, STATE], f"{STATE}_out")
        else:
            part.add("Gather", [filled, part.constant("intake.end", np.array(-1))], f"{STATE}_out", axis=1)
        part.features = self._channels(part, filled, missing)
        if self.stride:
            part.features = self._patches(part, part.features, time=True)
        return part

    def _patches(self, part: Part, samples: str, *, time: bool) -> str:
        """The channels of a patch's samples side by side."""
        channels = self.stride * len(self.mean) * (2 if self.mask_channel else 1)
        shape = part.constant("intake.patch", np.array([0, -1, channels] if time else [0, channels]))
        return part.add("Reshape", [samples, shape], "intake.patches")

    def _scaled(self, part: Part, x: str) -> tuple[str, str]:
        """Which values are missing, and the standard scores of the others."""
        missing = part.add("IsNaN", [x], "intake.missing")
        distance = part.add("Sub", [x, part.constant("intake.mean", self.mean)], "intake.distance")
        return missing, part.add("Div", [distance, part.constant("intake.scale", self.scale)], "intake.scaled")

    def _channels(self, part: Part, held: str, missing: str) -> str:
        if self.keep_missing:
            nan = part.constant("intake.nan", np.array(np.nan, np.float32))
            held = part.add("Where", [missing, nan, held], "intake.left_missing")
        if not self.mask_channel:
            return held
        observed = part.add("Not", [missing], "intake.observed")
        mask = part.add("Cast", [observed], "intake.mask", to=TensorProto.FLOAT)
        return part.add("Concat", [held, mask], "intake.channels", axis=-1)

    def _filled(self, missing: str, scaled: str) -> onnx.GraphProto:
        """Branch where some value is missing: each takes the one before it."""
        held, value, gap = (_batch("held", self.mean), _batch("value", self.mean), _batch("gap", self.mean))
        gap.type.tensor_type.elem_type = _BOOL
        body = helper.make_graph(
            [
                helper.make_node("Where", ["gap", "held", "value"], ["held_out"]),
                helper.make_node("Identity", ["held_out"], ["filled"]),
            ],
            "hold",
            [held, value, gap],
            [_batch("held_out", self.mean), _batch("filled", self.mean)],
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
        return helper.make_graph([scan], "fill", [], [self._over_time("intake.held_on")])

    def _whole(self, scaled: str) -> onnx.GraphProto:
        """Branch where no value is missing."""
        same = helper.make_node("Identity", [scaled], ["intake.as_it_is"])
        return helper.make_graph([same], "pass", [], [self._over_time("intake.as_it_is")])

    def _over_time(self, name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", None, len(self.mean)])


def _batch(name: str, features: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", len(features)])
