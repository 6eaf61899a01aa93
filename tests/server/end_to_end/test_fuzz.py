"""Whatever a header, a path or a body of series holds, it is answered or refused with a sentence."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server_helpers import Published
from stablernn_runtime.run_batch import run_items
from stablernn_server import InputError, ServerError, Settings
from stablernn_server.codecs.json_values import json_body
from stablernn_server.errors import STATUS_AND_CODE
from stablernn_server.handlers.timeseries import prepare_classify, prepare_forecast
from stablernn_server.http.request import decompress
from stablernn_server.model_repository import ModelRepository
from stablernn_server.observability.telemetry import Telemetry
from stablernn_server.routes.timeseries import _parse_body
from stablernn_server.schemas.timeseries import ClassifyRequest, ForecastRequest

pytestmark = pytest.mark.slow

LIMITS = Settings(max_elements=2**12)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
LONG_TEXTS = st.sampled_from([("a", 10**6), ("9", 5000)]).map(lambda part: part[0] * part[1])
NUMBERS = st.none() | st.floats(width=32) | st.integers(-(2**40), 2**40)


SERIES = st.one_of(
    st.lists(NUMBERS, max_size=9),
    st.lists(st.lists(NUMBERS, min_size=1, max_size=1), max_size=5),
    st.lists(st.lists(NUMBERS, max_size=3), max_size=5),
    JSON,
)
INPUTS = st.fixed_dictionaries(
    {"series": SERIES},
    optional={
        "type": st.sampled_from(["univariate_time_series", "multivariate_time_series"]) | JSON,
        "name": st.text(max_size=5) | JSON,
        "frequency": st.sampled_from(["W", "MS", "15min", "QE-JAN", "999999YE"]) | st.text(max_size=5),
        "start_timestamp": st.datetimes().map(str) | st.text(max_size=8),
    },
)
SERIES_BODIES = st.fixed_dictionaries(
    {"model": st.sampled_from(["co2", "animals", "animals@production", "flow"]) | st.text(max_size=5)},
    optional={
        "inputs": st.lists(INPUTS, max_size=3) | JSON,
        "options": st.fixed_dictionaries(
            {},
            optional={
                "horizon": st.integers(-1, 6) | JSON,
                "quantiles": st.lists(st.sampled_from([0.1, 0.5, 0.9, 0.95]), max_size=3) | JSON,
                "top_k": st.integers(-1, 6) | JSON,
            },
        )
        | JSON,
    },
)


def is_refused_well(error: ServerError) -> bool:
    return type(error) in STATUS_AND_CODE and str(error).endswith((".", "?")) and len(str(error)) < 1000


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=64), st.sampled_from(["gzip", "x-gzip", "deflate"]), st.integers(0, 40), st.integers(0, 40))
def test_compressed_bodies(body: bytes, encoding: str, cut: int, limit: int) -> None:
    """Whole ones come out as they were; damaged, cut and extended ones, and those above the limit, are refused."""
    packed = gzip.compress(body, mtime=0) if encoding != "deflate" else zlib.compress(body)
    for content in (packed, body, packed[:cut], packed + body, packed[: len(packed) - cut] + body):
        try:
            found = b"".join(decompress(content, encoding, limit))
        except ServerError as error:
            if not is_refused_well(error):
                raise
            assert content != packed or len(body) > limit
        else:
            assert len(found) <= limit
            assert content != packed or found == body


@pytest.fixture(scope="module")
def table(published: Published) -> ModelRepository:
    served = Settings(registry=published.root, models=("animals@production", "co2", "flow"))
    return ModelRepository.open(served, Telemetry(served))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["animals", "animals@production", "animals:1"]) | LONG_TEXTS | st.text(max_size=5),
    st.none() | st.sampled_from(["1", "0", "01", "2" * 18, "9" * 5000, "٣"]) | st.text(max_size=3),
)
def test_paths(table: ModelRepository, model: str, version: str | None) -> None:
    try:
        assert asyncio.run(table.find_open(model, version)).name == "animals"
    except ServerError as error:
        if not is_refused_well(error):
            raise


@settings(max_examples=200, deadline=None)
@given(SERIES_BODIES | JSON)
@pytest.mark.parametrize(
    ("schema", "prepare"), [(ForecastRequest, prepare_forecast), (ClassifyRequest, prepare_classify)]
)
def test_timeseries(table: ModelRepository, schema: Any, prepare: Any, body: Any) -> None:
    try:
        request = _parse_body(json.dumps(body).encode(), schema)
        model = asyncio.run(table.find_open(request.model))
        prepared = prepare(model, request, LIMITS)
        part = model.prepare(model.sequence, prepared.inputs, prepared.outputs)
        (share,) = run_items(model.sequence, [part], None)
        if isinstance(share, InputError):
            raise share
        content = json_body(prepared.finish(share.outputs, share.violations))
    except ServerError as error:
        if not is_refused_well(error):
            raise
        return
    assert orjson.loads(content)["status"] == "completed"
