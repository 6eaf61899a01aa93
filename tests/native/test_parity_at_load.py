"""Descriptions of a scaling by a window: right ones are opened, wrong ones refused, however long the window is."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import stablernn as srn
from native_exports import Arrays, as_trained, changed_copy, sequence_feeds, write_version
from step_forms import needs_native

pytestmark = needs_native

with contextlib.suppress(ImportError):
    from stablernn_native.server_engine import NativeServerEngine, native_engine

WINDOW, SEASON = 1000, 700
"""More than a sequence at loading has."""


@pytest.fixture(scope="module")
def long_window(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = srn.Forecaster("lipschitz", 1, 2, 6, scaling="context", window=WINDOW, season=SEASON, log=True)
    return write_version(as_trained(model), tmp_path_factory.mktemp("long"))


def multiply_floor(document: dict[str, Any], factor: float) -> None:
    floor = document["context"]["floor"]
    floor["fill" if "fill" in floor else "factor"] *= factor


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a longer season": lambda document: document["context"].update(season=document["context"]["season"] * 9 // 7),
    "a shorter season": lambda document: document["context"].update(season=document["context"]["season"] * 6 // 7),
    "a lower floor": lambda document: multiply_floor(document, 0.1),
    "a higher floor": lambda document: multiply_floor(document, 2),
    "a lower clip": lambda document: document["context"].update(clip=5.0),
    "a higher clip": lambda document: document["context"].update(clip=9.0),
    "another scale floor": lambda document: document["context"].update(scale_floor=0.06),
}


def test_a_window_longer_than_a_sequence_is_opened(long_window: Path) -> None:
    context = native_engine(long_window, "cpu").description.context
    assert context is not None
    assert (context.window, context.season) == (WINDOW, SEASON)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_description_of_a_long_window_is_refused(case: str, tmp_path: Path, long_window: Path) -> None:
    with pytest.raises(ValueError, match="differs from its graph by .* Use --engine onnx, and report it"):
        native_engine(changed_copy(long_window, tmp_path, WRONG[case]), "cpu")


@pytest.mark.parametrize("case", [case for case in WRONG if "longer" not in case])
def test_a_wrong_description_of_a_short_window_is_refused(
    case: str, tmp_path: Path, versions: Callable[[str], Path]
) -> None:
    with pytest.raises(ValueError, match="differs from its graph by .* Use --engine onnx, and report it"):
        native_engine(changed_copy(versions("context, logarithms"), tmp_path, WRONG[case]), "cpu")


@pytest.mark.parametrize("count", [0, SEASON - 1, SEASON, SEASON + 1, WINDOW])
def test_spikes_flat_stretches_and_values_below_the_floor_equal_the_graphs(
    count: int, tmp_path: Path, long_window: Path
) -> None:
    engine = native_engine(long_window, "cpu")
    feeds = sequence_feeds(dict(engine.signature), 3, 150)
    window, counts, mean = (state["input"] for state in engine.signature["states"][:3])
    feeds[counts][:] = count
    feeds[window][2], feeds[mean][2] = 0.5, 40
    feeds["lengths"][:] = [150, 90, 150]
    feeds["x"] = np.exp(feeds["x"] / 2)
    feeds["x"][1:, :60] = 3.0
    feeds["x"][0, 140] = feeds["x"][1, 80] = 1e20
    feeds["x"][:, 85], feeds["x"][:, 86], feeds["x"][:, 87] = 0, -1, 1e-30
    steps: Arrays = {name: value for name, value in feeds.items() if name != "lengths"}
    for kind, given, function in (
        ("sequence", feeds, engine.sequence),
        # A step of each row, after which the window ends in the spike, or below the floor.
        ("step", {**steps, "x": feeds["x"][:, 140]}, engine.step),
        ("step", {**steps, "x": feeds["x"][:, 86]}, engine.step),
    ):
        graph = (long_window / f"{kind}.onnx").read_bytes()
        names = [tensor["name"] for tensor in engine.signature[kind]["outputs"]]
        expected = ort.InferenceSession(graph, providers=["CPUExecutionProvider"]).run(names, given)
        for name, value, reference in zip(names, function.run(names, given), expected, strict=True):
            # The upper quantiles of a random model may be infinite, in both alike.
            largest = np.abs(reference[np.isfinite(reference)]).max()
            np.testing.assert_allclose(value, reference, rtol=0, atol=5e-5 * largest, err_msg=f"{kind}: {name}")
    # The inputs reach all that they are to test: with another number the states of the layer are others.
    layer = engine.signature["states"][3]["output"]
    (right,) = engine.sequence.run([layer], feeds)
    for case in ("a lower floor", "a lower clip", "another scale floor"):
        folder = changed_copy(long_window, tmp_path / case, WRONG[case])
        signature = json.loads((folder / "config.json").read_bytes())["signature"]
        (wrong,) = NativeServerEngine((folder / "step.onnx").read_bytes(), signature).sequence.run([layer], feeds)
        assert np.abs(wrong - right).max() > 1e-3 * np.abs(right).max(), case
