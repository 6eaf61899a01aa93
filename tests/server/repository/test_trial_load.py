"""Versions that take too long or too much to open: they are tried in a process of its own, which is given up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hostile_graphs import with_endless_scan, with_huge_tensor
from server_helpers import Published
from serving_helpers import until
from stablernn_registry import Version
from stablernn_runtime.graph_safety import check_graph
from stablernn_server import DeadlineError, ModelLoadError, NotReadyError, Settings, VersionGoneError, create_app
from stock_helpers import Stock, index, loads, version

pytestmark = pytest.mark.anyio

TRIED = "'animals:3' cannot be served: opening it was tried in a process of its own, and"
ADVICE = "If the version is sound, allow more by STABLERNN_LOAD_TIMEOUT_SECONDS and STABLERNN_LOAD_MEMORY_BYTES."
GIB = 2**30


@pytest.fixture
def stock(tmp_path: Path, published: Published) -> Stock:
    return Stock(tmp_path / "registry", published)


def endless(stock: Stock) -> Version:
    """Version 3 of ``animals``, whose graphs pass the check."""
    good = stock.registry.get("animals:1")
    content = with_endless_scan(good.read("step.onnx"))
    check_graph(content, "g")
    return stock.copy(good, step_onnx=content)


def refusal(stock: Stock, **settings: object) -> str:
    with pytest.raises(ModelLoadError) as caught:
        create_app(Settings(registry=stock.registry.root, models=("animals:3",), **settings))  # type: ignore[arg-type]
    return str(caught.value)


def test_a_graph_that_never_ends_is_no_start(stock: Stock) -> None:
    endless(stock)
    assert refusal(stock, load_timeout_seconds=1) == f"{TRIED} it takes longer than 1 s. {ADVICE}"


def test_a_graph_that_takes_all_memory_is_no_start(stock: Stock) -> None:
    good = stock.registry.get("animals:1")
    stock.copy(good, step_onnx=with_huge_tensor(good.read("step.onnx"), GIB))
    assert refusal(stock, load_memory_bytes=GIB) == f"{TRIED} it takes more than {GIB} bytes of memory. {ADVICE}"


def test_what_is_large_within_the_bound_is_served(stock: Stock) -> None:
    good = stock.registry.get("animals:1")
    stock.copy(good, step_onnx=with_huge_tensor(good.read("step.onnx"), 2**20))
    with stock.served("animals:3") as (_, client):
        assert version(client) == "3"


@pytest.mark.slow
def test_a_server_goes_on_with_the_old_version_and_says_so(stock: Stock) -> None:
    with stock.served("animals@production", load_timeout_seconds=3) as (_, client):
        endless(stock)
        stock.point(3)
        sentence = f"{TRIED} it takes longer than 3 s. {ADVICE}"

        def is_refused() -> bool:
            # It answers while the other version is tried.
            assert version(client) == "1"
            return index(client)["animals", 3] == ("UNAVAILABLE", sentence)

        until(is_refused, 60)
        assert loads(client, "animals", 3, "failed") == 1
        stock.point(2)
        until(lambda: version(client) == "2")


@pytest.mark.slow
async def test_other_versions_are_opened_while_one_is_tried(stock: Stock) -> None:
    hostile = endless(stock)
    untried = stock.copy(stock.registry.get("animals:1"), parity_json=b"5")
    settings = Settings(registry=stock.registry.root, models=("animals:1", "animals:2"), load_timeout_seconds=120)
    context = create_app(settings).state.context

    slow = asyncio.create_task(context.models.find_by_digest(hostile.digest, "animals", hostile.version))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(60):
        model = await context.models.find_by_digest(untried.digest, "animals", untried.version)
        assert model.digest == untried.digest
        assert (await context.models.load("flow:1")).ref == "flow:1"
    assert not slow.done()
    context.models.stop_trials()
    with pytest.raises(NotReadyError):
        await slow


def test_a_version_is_tried_once_for_all_who_wait_and_their_deadlines_hold(stock: Stock) -> None:
    hostile = endless(stock)
    settings = Settings(registry=stock.registry.root, models=("animals:1",), load_timeout_seconds=3)
    models = create_app(settings).state.context.models

    async def open_for_several() -> list[BaseException | object]:
        soon = asyncio.get_running_loop().time() + 0.5
        waits = [models.find_by_digest(hostile.digest, "animals", 3, deadline) for deadline in (soon, None, None)]
        return await asyncio.gather(*waits, return_exceptions=True)

    late, *others = asyncio.run(open_for_several())
    assert isinstance(late, DeadlineError)
    sentence = f"{TRIED} it takes longer than 3 s. {ADVICE}"
    for error in others:
        assert isinstance(error, VersionGoneError)
        assert sentence in str(error)
