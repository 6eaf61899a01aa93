"""What the routes of one application share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread
import orjson
from anyio import CapacityLimiter
from fastapi import Request, Response

from stablernn_server.errors import NotReadyError
from stablernn_server.runtime.table import ModelTable
from stablernn_server.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Context:
    """One application's models and the workers that run them.

    Attributes:
        settings: What the server was told.
        models: The open models.
        workers: Bounds the inferences at a time; None before start-up and after shutdown.
    """

    settings: Settings
    models: ModelTable
    workers: CapacityLimiter | None = None

    @property
    def is_ready(self) -> bool:
        return self.workers is not None

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function`` on a worker thread; decoding, inference and encoding would stop the event loop.

        Raises:
            NotReadyError: Before start-up and after shutdown.
        """
        if self.workers is None:
            raise NotReadyError("The server is starting or shutting down; try again later.")
        return await anyio.to_thread.run_sync(partial(function, *args, **kwargs), limiter=self.workers)


def context_of(request: Request) -> Context:
    """The context that :func:`stablernn_server.create_app` put into the application."""
    context: Context = request.app.state.context
    return context


def json_response(content: Any, status: int = 200) -> Response:
    """``content``, numpy arrays included, as a JSON answer; NaN becomes null."""
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), status, media_type="application/json")
