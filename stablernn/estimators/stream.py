"""A stream of one series: samples in one by one, the output so far after each, by the exported step graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import finite_float32
from stablernn.errors import ConfigError, DataError
from stablernn.export.parity import open_session
from stablernn.export.scan import step_graph
from stablernn.export.step import export_parts, frozen_copy
from stablernn.nn.models import SequenceModel

Array = npt.NDArray[Any]


class Stream:
    """The state of one series.

    Each sample costs the same, however long the stream is. After the last sample of a sequence the outputs equal those
    of the exported ``sequence.onnx`` to the last bit, on one CPU thread of one machine; ``export`` checks that. They
    differ from those of torch, which ``predict`` takes, by rounding.

    Args:
        model: The model; later changes of its weights do not reach the stream.
        labels: Classes in the order of the probabilities; None for other tasks.

    Raises:
        ConfigError: If the model resamples complete sequences, takes the time of each step, or covariates.

    Examples:
        >>> from stablernn import Classifier
        >>> stream = Stream(Classifier("gru", input_size=1, num_classes=2, hidden_size=4))
        >>> outputs = [stream.push(sample) for sample in (20.5, float("nan"), 19.0)]
        >>> outputs[-1]["probabilities"].shape, stream.steps
        ((2,), 3)
    """

    def __init__(self, model: SequenceModel, *, labels: Sequence[Any] | None = None) -> None:
        if model.resampling is not None:
            raise ConfigError(
                "A model with resample_steps needs complete sequences and cannot stream. Train without it."
            )
        if model.known_inputs or model.max_dt is not None:
            inputs = " and ".join([*model.known_inputs, *(["dt"] if model.max_dt is not None else [])])
            raise ConfigError(
                f"The model takes {inputs} beside its samples, which a stream here does not. Export it, and stream it "
                "by stablernn_runtime.ServedModel or the server."
            )
        frozen = frozen_copy(model)
        self._session = open_session(step_graph(export_parts(frozen)).SerializeToString())
        self._sample_shape = frozen.sample_shape
        self._input_name = frozen.input_name
        self._is_end_aligned = frozen.end_aligned
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._labels = None if labels is None else list(labels)
        self.reset()

    def reset(self) -> None:
        """Start a new series."""
        self._state = {
            entry.name: np.zeros((1, *entry.shape[1:]), np.float32)
            for entry in self._session.get_inputs()
            if entry.name != self._input_name
        }
        self.steps = 0
        self._pending: list[Array] = []
        self._last: dict[str, Any] = {}

    @property
    def state(self) -> dict[str, Array]:
        """The state tensors by name, each ``(1, size)``: copies, which can be put back."""
        return {name: value.copy() for name, value in self._state.items()}

    def push(self, sample: Any) -> dict[str, Any] | None:
        """Take a sample and return the outputs so far.

        Args:
            sample: Raw values ``(features,)``, or a number for a model of one feature; NaN for a missing value.

        Returns:
            The outputs by name, without a batch axis, and of a classifier ``label``. None while a patch of samples
            is not complete: the layers of a model with patches advance once for each patch.

        Raises:
            DataError: If the sample has another shape, or a value is infinite.
        """
        stride, features = self._sample_shape if len(self._sample_shape) == 2 else (1, self._sample_shape[0])
        values = np.atleast_1d(np.asarray(sample))
        if values.shape != (features,) or values.dtype.kind not in "fiub":
            raise DataError(
                f"A sample of the stream has the shape ({features},), a number for each feature, got {values.dtype} "
                f"of the shape {values.shape}."
            )
        self._pending.append(finite_float32(values, lambda index: f"Feature {index[0]} of sample {self.steps}"))
        self.steps += 1
        if len(self._pending) < stride:
            return None
        x = np.stack(self._pending)[None] if len(self._sample_shape) == 2 else self._pending[0][None]
        self._pending = []
        self._last, self._state = self._advanced(x)
        return dict(self._last)

    def finish(self) -> dict[str, Any]:
        """Return the outputs of the sequence as it ends here, even inside a patch; the stream can go on.

        The last patch is then filled up with missing values, as that of a whole sequence is.

        Raises:
            DataError: If there was no sample yet, or the model forecasts and the last patch is not complete: a forecast
                starts after a whole one.
        """
        if not self.steps:
            raise DataError("The stream has no sample yet. Push one.")
        if not self._pending:
            return dict(self._last)
        stride, features = self._sample_shape
        if self._is_end_aligned:
            raise DataError(
                f"A forecast starts after a whole patch of {stride} samples, got {len(self._pending)} after the last. "
                f"Push {stride - len(self._pending)} more, or begin the stream with as many missing ones."
            )
        x = np.full((1, stride, features), np.nan, np.float32)
        x[0, : len(self._pending)] = self._pending
        return self._advanced(x)[0]

    def _advanced(self, x: Array) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the outputs of a patch and the state after it."""
        values = self._session.run(None, {self._input_name: x, **self._state})
        outputs: dict[str, Any] = dict(zip(self._outputs, values, strict=True))
        state = {name: outputs.pop(f"{name}_out") for name in self._state}
        result: dict[str, Any] = {name: value[0] for name, value in outputs.items()}
        if self._labels is not None:
            result["label"] = self._labels[int(result["probabilities"].argmax())]
        return result, state
