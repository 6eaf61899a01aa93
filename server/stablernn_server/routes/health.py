"""``/v2``, ``/v2/health``: whether the server is alive and ready."""

from __future__ import annotations

from fastapi import APIRouter, Request

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
