"""``/v2/models/stats``, ``/v2/models/{model}/stats``: Triton's statistics extension."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fastapi import APIRouter, Request

from stablernn_registry import RefError, parse_ref
from stablernn_server.http.app_context import context_of
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
    return await _answer(request, context_of(request).models.keys())


@router.get("/{model}/stats")
@router.get("/{model}/versions/{version}/stats", openapi_extra=VERSION_DOCS)
async def model_statistics(request: Request, model: str) -> StatisticsAnswer:
    """Counts and times of one version; of every served version, if only the name is given."""
    models = context_of(request).models
    version = request.path_params.get("version")
    found = models.resolve(model, version)
    if version is None and _is_name(model):
        return await _answer(request, [(found[0], number) for number in models.versions(found[0])])
    return await _answer(request, [found])


def _is_name(reference: str) -> bool:
    try:
        ref = parse_ref(reference)
    except RefError:
        return False
    return ref.alias is None and ref.version is None


async def _answer(request: Request, keys: Sequence[Key]) -> StatisticsAnswer:
    # With several workers, there are files to read.
    totals = await asyncio.to_thread(context_of(request).telemetry.statistics.total, keys)
    return StatisticsAnswer(model_stats=[_of(name, version, found) for (name, version), found in totals])


def _of(name: str, version: int, found: ModelStatistics) -> ModelStatistic:
    none = Duration(count=0, ns=0)
    return ModelStatistic(
        name=name,
        version=str(version),
        last_inference=found.last_ms,
        inference_count=found.rows,
        execution_count=found.executions,
        inference_stats=InferenceStatistics(
            success=_duration(found.success),
            fail=_duration(found.fail),
            queue=_duration(found.queue),
            compute_input=_free(found.compute),
            compute_infer=_duration(found.compute),
            compute_output=_free(found.compute),
            cache_hit=none,
            cache_miss=none,
        ),
        batch_stats=[
            BatchStatistics(
                batch_size=size,
                compute_input=_free(entry),
                compute_infer=_duration(entry),
                compute_output=_free(entry),
            )
            for size, entry in sorted(found.sizes.items())
        ],
    )


def _duration(pair: list[int]) -> Duration:
    return Duration(count=pair[0], ns=pair[1])


def _free(pair: list[int]) -> Duration:
    """As many as ``pair``, in no time of their own."""
    return Duration(count=pair[0], ns=0)
