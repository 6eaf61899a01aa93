"""``/v2``, ``/v2/health``, ``/metrics``: whether the server is alive and ready, and its metrics for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from stablernn_server.http.app_context import get_context
from stablernn_server.schemas.open_inference import Live, Ready, ServerMetadata
from stablernn_server.version import package_version

router = APIRouter(prefix="/v2", tags=["health"])

EXTENSIONS = [
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "sequence",
    "statistics",
]
metrics_router = APIRouter(tags=["metrics"])

DOCS = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics, one per line"}}


@router.get("")
@router.get("/", include_in_schema=False)
async def server_metadata() -> ServerMetadata:
    """Name, version and protocol extensions of this server."""
    return ServerMetadata(name="stablernn", version=package_version(), extensions=EXTENSIONS)


@router.head("/health/live", include_in_schema=False)
@router.get("/health/live")
async def live() -> Live:
    """Answers as long as the process can."""
    return Live(live=True)


@router.head("/health/ready", include_in_schema=False)
@router.get("/health/ready")
async def ready(request: Request) -> Ready:
    """Answers 200 when every model is open and warm, 503 while starting and shutting down."""
    get_context(request).check_ready()
    return Ready(ready=True, live=True)


# A plain function, which the framework runs on a thread: many models have thousands of lines.
@metrics_router.get("/metrics", response_class=Response, responses=DOCS)  # type: ignore[arg-type]
def metrics(request: Request) -> Response:
    """All metrics in Prometheus' text format, or as OpenMetrics if the client asks for it."""
    body, content_type = get_context(request).telemetry.metrics.render(request.headers.get("accept", ""))
    return Response(body, media_type=content_type, headers={"Content-Type": content_type})
