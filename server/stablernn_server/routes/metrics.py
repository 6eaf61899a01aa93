"""``/metrics``: the metrics for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from stablernn_server.http.app_context import get_context

router = APIRouter(tags=["metrics"])

DOCS = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics, one per line"}}


# A plain function, which the framework runs on a thread: many models have thousands of lines.
@router.get("/metrics", response_class=Response, responses=DOCS)  # type: ignore[arg-type]
def metrics(request: Request) -> Response:
    """All metrics in Prometheus' text format, or as OpenMetrics if the client asks for it."""
    body, content_type = get_context(request).telemetry.metrics.render(request.headers.get("accept", ""))
    return Response(body, media_type=content_type, headers={"Content-Type": content_type})
