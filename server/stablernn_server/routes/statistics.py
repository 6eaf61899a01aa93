"""``/v2/models/stats``, ``/v2/models/{model}/stats``: Triton's statistics extension."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fastapi import APIRouter, Request

from stablernn_registry import RefError, parse_ref
from stablernn_server.http.app_context import get_context
from stablernn_server.observability.triton_statistics import Key, ModelStatistics
from stablernn_server.schemas.common import VERSION_DOCS
from stablernn_server.schemas.statistics import (
    BatchStatistics,
    Duration,
    InferenceStatistics,
    ModelStatistic,
    StatisticsAnswer,
)

router = APIRouter(prefix="/v2/models", tags=["models"])


@router.get("/stats")
async def all_statistics(request: Request) -> StatisticsAnswer:
    """Counts and times of every served version since the server started."""
    return await _respond(request, get_context(request).models.keys())


@router.get("/{model}/stats")
@router.get("/{model}/versions/{version}/stats", openapi_extra=VERSION_DOCS)
async def model_statistics(request: Request, model: str) -> StatisticsAnswer:
    """Counts and times of one version; of every served version, if only the name is given."""
    models = get_context(request).models
    version = request.path_params.get("version")
    key = models.resolve(model, version)
    if version is None and _is_name(model):
        name = key[0]
        return await _respond(request, [(name, number) for number in models.versions(name)])
    return await _respond(request, [key])


def _is_name(reference: str) -> bool:
    """Return whether a reference is a name without an alias or a version."""
    try:
        ref = parse_ref(reference)
    except RefError:
        return False
    return ref.alias is None and ref.version is None


async def _respond(request: Request, keys: Sequence[Key]) -> StatisticsAnswer:
    # With several workers, there are files to read.
    totals = await asyncio.to_thread(get_context(request).telemetry.statistics.totals, keys)
    return StatisticsAnswer(model_stats=[_describe(name, version, counts) for (name, version), counts in totals])


def _describe(name: str, version: int, counts: ModelStatistics) -> ModelStatistic:
    # Gathering inputs and splitting outputs are not timed apart from the run, and nothing is cached.
    zero = Duration(count=0, ns=0)
    return ModelStatistic(
        name=name,
        version=str(version),
        last_inference=counts.last_ms,
        inference_count=counts.rows,
        execution_count=counts.executions,
        inference_stats=InferenceStatistics(
            success=_duration(counts.success),
            fail=_duration(counts.fail),
            queue=_duration(counts.queue),
            compute_input=_zero_duration(counts.compute),
            compute_infer=_duration(counts.compute),
            compute_output=_zero_duration(counts.compute),
            cache_hit=zero,
            cache_miss=zero,
        ),
        batch_stats=[
            BatchStatistics(
                batch_size=size,
                compute_input=_zero_duration(runs),
                compute_infer=_duration(runs),
                compute_output=_zero_duration(runs),
            )
            for size, runs in sorted(counts.sizes.items())
        ],
    )


def _duration(count_and_ns: list[int]) -> Duration:
    return Duration(count=count_and_ns[0], ns=count_and_ns[1])


def _zero_duration(count_and_ns: list[int]) -> Duration:
    """Return a duration of the same count that took no time of its own."""
    return Duration(count=count_and_ns[0], ns=0)
