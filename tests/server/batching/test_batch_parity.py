"""A request gets the same bits in a batch as alone: every task, kind of input and cell, steps and whole sequences."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

import stablernn as srn
from engine_helpers import KINDS, publish, random_inputs
from exports import exported
from scheduler_helpers import scheduling
from server_helpers import Published, Running, json_tensor
from stablernn.nn.models import SequenceModel
from stablernn_client import AsyncClient
from stablernn_registry import Registry
from stablernn_runtime import ServedModel
from stablernn_runtime.run_batch import run_steps
from stablernn_server import InputError
from stablernn_server.batching.types import Caller

Arrays = dict[str, np.ndarray]
FAST_KINDS = ("patches-dt", "recursive")
FAST_CELL = "gru_d"
"""Beside those of the kinds; the whole catalog takes minutes to export."""


class Kind:
    """A kind of model with the torch model that knows what its inputs look like."""

    def __init__(self, model: ServedModel, source: SequenceModel) -> None:
        self.model = model
        self.source = source
        self.stride = model.patch_stride

    def inputs(self, seed: int, rows: int, steps: int) -> Arrays:
        return random_inputs(self.source, seed, rows, steps)[0]


@pytest.fixture(
    scope="module", params=[pytest.param(kind, marks=[] if kind in FAST_KINDS else pytest.mark.slow) for kind in KINDS]
)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    name = request.param
    published = publish(tmp_path_factory.mktemp("registry"), tmp_path_factory.mktemp("export"), [name])
    return Kind(ServedModel.load(published.registry.get(name)), published.torch_models[f"{name}:1"])


@pytest.fixture(autouse=True)
def _no_second_try(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What is run again, one request at a time, would be right whatever the batch did."""
    yield
    assert not [record for record in caplog.get_records("call") if "one by one" in record.getMessage()]


def assert_same_bits(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape, name
        assert np.array_equal(found[name], value), name


def whole_requests(kind: Kind, count: int) -> list[tuple[Arrays, list[str] | None]]:
    """Requests of different lengths; some leave out what may be left out, some go on from states, some want less."""
    model, requests = kind.model, []
    names = list(model.sequence.outputs)
    for seed in range(count):
        random = np.random.default_rng(seed)
        inputs = kind.inputs(seed, rows=int(random.integers(1, 4)), steps=int(random.integers(1, 17)))
        if random.random() < 0.5:
            before = model.run(model.sequence, kind.inputs(seed + 1000, len(inputs["lengths"]), 5))
            inputs |= model.next_state(before)
        for name in ("lengths", "dt", "static", "future"):
            if name in inputs and random.random() < 0.5:
                del inputs[name]
        requests.append((inputs, None if random.random() < 0.5 else [names[int(random.integers(len(names)))]]))
    return requests


def assert_whole_sequences_have_their_bits(kind: Kind) -> None:
    """Each request of a batch has the bits that it has alone."""
    model, requests = kind.model, whole_requests(kind, 40)
    alone = [model.run(model.sequence, inputs, names) for inputs, names in requests]

    async def together() -> dict[int, int]:
        async with scheduling() as desk:
            answers = await asyncio.gather(
                *(desk.scheduler.run(model, inputs, names, caller=Caller()) for inputs, names in requests)
            )
            for answer, expected in zip(answers, alone, strict=True):
                assert_same_bits(answer.outputs, expected)
            return desk.sizes(model)

    sizes = asyncio.run(together())
    assert sum(size * count for size, count in sizes.items()) == sum(
        len(inputs[model.input_name]) for inputs, _ in requests
    )
    # Batches of dozens, as requests of up to three sequences each cannot make alone.
    assert max(sizes) > 30


def test_whole_sequences(kind: Kind) -> None:
    assert_whole_sequences_have_their_bits(kind)


def test_rows_of_one_request_are_what_each_is_alone(kind: Kind) -> None:
    """Over the whole horizon, which a recursive head is rolled out to."""
    model = kind.model
    inputs = kind.inputs(seed=7, rows=9, steps=19)
    if model.rollout is not None:
        shape = (9, model.rollout.horizon, len(model.rollout.future_indices))
        inputs["future"] = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x, lengths = inputs.pop(model.input_name), inputs.pop("lengths")
    together = model.run_numpy(x, lengths, **inputs)
    for row, length in enumerate(lengths):
        further = {name: value[row : row + 1] for name, value in inputs.items()}
        if "dt" in further:
            further["dt"] = further["dt"][:, :length]
        alone = model.run_numpy(x[row : row + 1, :length], **further)
        for name, value in alone.items():
            over_time = "time" in model.sequence.outputs[name].shape
            found = together[name][row : row + 1]
            assert np.array_equal(found[:, :length] if over_time else found, value), name


def step_requests(kind: Kind, count: int) -> list[tuple[Arrays, Arrays, bool]]:
    """Inputs, states and ``every`` of streams with different numbers of steps."""
    model, requests = kind.model, []
    for seed in range(count):
        random = np.random.default_rng(seed)
        rows, steps = int(random.integers(1, 3)), int(random.integers(1, 8))
        whole = kind.inputs(seed, rows, steps * kind.stride)
        axes = (rows, steps, kind.stride) if kind.stride > 1 else (rows, steps)
        inputs = {model.input_name: whole[model.input_name].reshape(*axes, *whole[model.input_name].shape[2:])}
        if "dt" in whole and random.random() < 0.7:
            inputs["dt"] = whole["dt"].reshape(axes)
        if "static" in whole and random.random() < 0.7:
            inputs["static"] = whole["static"]
        if "future" in whole and random.random() < 0.7:
            ahead = [kind.inputs(seed + 1000 + step, rows, 1)["future"] for step in range(steps)]
            inputs["future"] = np.stack(ahead, axis=1)
        states: Arrays = {}
        if random.random() < 0.5:
            states = model.next_state(model.run(model.sequence, kind.inputs(seed + 500, rows, 3 * kind.stride)))
            if random.random() < 0.5:
                del states[next(iter(states))]
        requests.append((inputs, states, bool(random.random() < 0.6)))
    return requests


@pytest.mark.parametrize("estimate_step_ns", [0.0, 1e12], ids=["on the event loop", "on a thread"])
def test_steps(kind: Kind, estimate_step_ns: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, requests = kind.model, step_requests(kind, 40)
    alone = [
        run_steps(model.step, [model.prepare_steps(inputs, states, every=every)], None)[0]
        for inputs, states, every in requests
    ]
    monkeypatch.setattr(model, "estimate_step_ns", lambda rows: estimate_step_ns)

    async def together() -> dict[int, int]:
        async with scheduling() as desk:
            answers = await asyncio.gather(
                *(
                    desk.scheduler.step(model, inputs, states, caller=Caller(), every=every)
                    for inputs, states, every in requests
                )
            )
            for answer, expected in zip(answers, alone, strict=True):
                assert not isinstance(expected, InputError)
                assert_same_bits(answer.outputs, expected.outputs)
                assert_same_bits(answer.states, expected.states)
            return desk.sizes(model)

    assert max(asyncio.run(together())) > 10


def assert_steps_have_the_bits_of_whole_sequences(kind: Kind) -> None:
    model, requests = kind.model, step_requests(kind, 40)

    async def together() -> list[Any]:
        async with scheduling() as desk:
            return await asyncio.gather(
                *(desk.scheduler.step(model, inputs, states, caller=Caller()) for inputs, states, _ in requests)
            )

    for (inputs, states, _), answer in zip(requests, asyncio.run(together()), strict=True):
        rows, steps = inputs[model.input_name].shape[:2]
        flat = dict(states)
        for name, value in inputs.items():
            if name == "static":
                flat[name] = value
            elif name == "future":
                flat[name] = value[:, -1]
            else:
                flat[name] = value.reshape(rows, steps * kind.stride, *value.shape[3 if kind.stride > 1 else 2 :])
        whole = model.run(model.sequence, flat)
        assert_same_bits(answer.states, model.next_state(whole))
        for name, value in answer.outputs.items():
            over_time = "time" in model.sequence.outputs[name].shape
            assert np.array_equal(value if over_time else value[:, -1], whole[name]), name


def test_steps_are_what_the_whole_sequence_is(kind: Kind) -> None:
    assert_steps_have_the_bits_of_whole_sequences(kind)


@pytest.mark.parametrize(
    "cell", [pytest.param(cell, marks=[] if cell == FAST_CELL else pytest.mark.slow) for cell in srn.list_cells()]
)
def test_every_cell(cell: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = srn.Classifier(cell, 2, 3, 33)
    source.fit_scaling([np.random.default_rng(0).normal(3.0, 2.0, (50, 2))])
    report = exported(source.eval(), tmp_path / "export")
    fields = {"task": "classify", "cell": cell, "features": ["a", "b"], "labels": ["x", "y", "z"]}
    version = Registry(tmp_path / "registry").publish("m", report.files, {**fields, "signature": report.signature})
    kind = Kind(ServedModel.load(version), source)
    assert_whole_sequences_have_their_bits(kind)
    assert_steps_have_the_bits_of_whole_sequences(kind)


def test_one_bad_request_in_a_batch_fails_alone(published: Published) -> None:
    model = ServedModel.load(published.registry.get("co2:1"))
    state = next(state.input for state in model.states if state.shape == ["batch", 8])
    random = np.random.default_rng(0)
    requests: list[Arrays] = [{"x": random.normal(size=(2, 3, 1)).astype(np.float32)} for _ in range(9)]
    requests[4][state] = np.array([[0.0] * 8, [3e38] * 8], np.float32)
    sentence = (
        "The output '{}' of model 'co2:1' is not finite for sequence 1: its values lead beyond the range of float32."
    )

    async def together(step: bool) -> tuple[list[Any], dict[int, int]]:
        async with scheduling() as desk:
            if step:
                works = [
                    desk.scheduler.step(
                        model, {"x": given["x"]}, {state: given[state]} if state in given else {}, caller=Caller()
                    )
                    for given in requests
                ]
            else:
                works = [desk.scheduler.run(model, given, caller=Caller()) for given in requests]
            return await asyncio.gather(*works, return_exceptions=True), desk.sizes(model)

    for step in (False, True):
        answers, sizes = asyncio.run(together(step))
        assert sizes == {18: 1}
        assert [isinstance(answer, Exception) for answer in answers] == [index == 4 for index in range(9)]
        assert isinstance(answers[4], InputError)
        # Of steps it is said at the first one where any output is not.
        assert str(answers[4]) == sentence.format("quantiles" if step else "mean")
        for given, answer in zip(requests, answers, strict=True):
            if answer is not answers[4]:
                found = answer.outputs["mean"][:, -1] if step else answer.outputs["mean"]
                assert np.array_equal(found, model.run(model.sequence, given)["mean"])


def test_hundreds_of_requests_at_once_each_get_their_own_answer(
    server: Running, animals: ServedModel, flow: ServedModel
) -> None:
    """Models, lengths, rows, JSON and raw bytes mixed, over a port; by value, bit for bit."""
    random = np.random.default_rng(0)
    jobs = []
    for _ in range(120):
        model = animals if random.random() < 0.6 else flow
        shape = (int(random.integers(1, 4)), int(random.integers(1, 60)), len(model.manifest.features))
        x = random.normal(size=shape).astype(np.float32)
        x[random.random(shape) < 0.1] = np.nan
        jobs.append((model, x, bool(random.random() < 0.5)))

    async def ask(
        http: httpx.AsyncClient, client: AsyncClient, model: ServedModel, x: np.ndarray, is_binary: bool
    ) -> Arrays:
        reference = f"{model.name}:{model.version}"
        if is_binary:
            return await client.infer(reference, {"x": x})
        # NaN as Python writes it stands for null.
        content = json.dumps({"inputs": [json_tensor("x", x)]})
        answer = (await http.post(f"/v2/models/{reference}/infer", content=content)).raise_for_status().json()
        return {
            output["name"]: np.array(output["data"], np.float32).reshape(output["shape"])
            for output in answer["outputs"]
        }

    async def together() -> list[Arrays]:
        limits = httpx.Limits(max_connections=64)
        async with (
            httpx.AsyncClient(base_url=server.url, limits=limits, timeout=60) as http,
            AsyncClient(server.url, timeout=60) as client,
        ):
            return await asyncio.gather(*(ask(http, client, *job) for job in jobs))

    for (model, x, _), found in zip(jobs, asyncio.run(together()), strict=True):
        assert_same_bits(found, model.run(model.sequence, {"x": x}))
