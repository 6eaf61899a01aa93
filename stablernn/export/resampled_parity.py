"""Parity of ``sequence.onnx`` with a resampling, which has no step graph to compare with.

The torch model, the sequence graph on one padded batch, and the same on each sequence alone are compared as in
:mod:`stablernn.export.parity`, with its bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stablernn.export import parity
from stablernn.export.input_products import MAX_ELEMENTS, MAX_ROWS_NAME
from stablernn.export.torch_outputs import Arrays, max_errors, measure_amplification, measure_rounding, run_torch
from stablernn.nn.models import SequenceModel


def measure_resampled_parity(
    model: SequenceModel, sequence: bytes, *, lengths: Sequence[int] = parity.DEFAULT_LENGTHS, seed: int = 0
) -> dict[str, Any]:
    """Return the report of :func:`stablernn.export.parity.measure_parity` without steps and streams.

    Args:
        model: The model in evaluation mode, float32, on the CPU.
        sequence: Serialized ``sequence.onnx``.
        lengths: Sequence lengths, in raw samples.
        seed: Seed of the random inputs.
    """
    generator, session = np.random.default_rng(seed), parity.open_session(sequence)
    rows, amplification = [], 1.0
    for length in lengths:
        for batch in parity.BATCHES:
            inputs = parity.draw_inputs(model, generator, batch, length)
            lengths_of_batch = parity.draw_lengths(generator, batch, length)
            # The graph gives no states.
            expected = run_torch(model, inputs, lengths_of_batch, {})
            expected = {name: expected[name] for name in model.output_names}
            actual = parity.run_session(session, {**inputs, "lengths": lengths_of_batch})
            batch_amplification = measure_amplification(model, inputs, lengths_of_batch, {}, generator)
            amplification = max(amplification, batch_amplification)
            max_error = min(parity.STEP_TOLERANCE * batch_amplification, parity.SEQUENCE_CAP)
            row: dict[str, Any] = {"time": length, "batch": batch, "allowed_rel_error": max_error}
            row["max_abs_error"], row["max_rel_error"] = max_errors(expected, actual)
            if not row["max_rel_error"] <= max_error:
                rounding = measure_rounding(model, inputs, lengths_of_batch, {}, expected)
                row["allowed_rel_error"] = parity.allow_rounding(max_error, rounding)
            singles = [inputs["x"][b : b + 1, : lengths_of_batch[b]] for b in range(batch)]
            outputs = [
                parity.run_session(session, {"x": single, "lengths": lengths_of_batch[b : b + 1]})
                for b, single in enumerate(singles)
            ]
            row["batch_equals_single"] = all(
                parity.are_equal({name: value[b : b + 1] for name, value in actual.items()}, outputs[b])
                for b in range(batch)
            )
            if (length, batch) == (lengths[-1], parity.BATCHES[-1]) and MAX_ROWS_NAME.encode() in sequence:
                row["batch_equals_single"] &= _long_batch_equals_single(model, session, singles[0], outputs[0])
            rows.append(row)
    return {
        "max_abs_error": max(row["max_abs_error"] for row in rows),
        "max_rel_error": max(row["max_rel_error"] for row in rows),
        "amplification": amplification,
        "batch_equals_single": all(row["batch_equals_single"] for row in rows),
        "longest": max(lengths),
        "compared": rows,
        "conditions": parity.conditions(),
    }


def check_resampled_parity(model: SequenceModel, sequence: bytes, *, lengths: Sequence[int]) -> dict[str, Any]:
    """Return the report, checked.

    Raises:
        ParityError: If any difference exceeds its bound.
    """
    report = measure_resampled_parity(model, sequence, lengths=lengths)
    parity.check_bounds(report)
    return report


def _long_batch_equals_single(model: SequenceModel, session: Any, x: np.ndarray, outputs: Arrays) -> bool:
    """Return whether a sequence has the same outputs in a batch too long for products in front of the Scan."""
    assert model.resampling is not None
    steps = -(-model.resampling.steps // model.patches.stride)
    batch = (MAX_ELEMENTS // model.rnn.first.hidden_size + 1) // steps + 1
    feeds = {"x": np.repeat(x, batch, axis=0), "lengths": np.full(batch, x.shape[1], np.int64)}
    repeated = {name: np.repeat(value, batch, axis=0) for name, value in outputs.items()}
    return parity.are_equal(repeated, parity.run_session(session, feeds))
