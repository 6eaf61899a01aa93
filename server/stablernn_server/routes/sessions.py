"""``/v1/sessions`` and ``/v1/step``: streams over plain HTTP, kept by the server or by the client."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Query, Request, Response

from stablernn_runtime.stream_spec import stream_spec
from stablernn_server.batching.types import Caller
from stablernn_server.codecs.json_values import json_body
from stablernn_server.errors import InputError, OtherModelError, cut
from stablernn_server.handlers.stream_steps import advance_stream, parse_static
from stablernn_server.http.app_context import AppContext, get_context
from stablernn_server.http.middleware import DirectRoute
from stablernn_server.http.request import ActiveRequest, Scope, get_request
from stablernn_server.http.responses import RawResponse, json_response
from stablernn_server.schemas.common import json_request
from stablernn_server.schemas.sessions import (
    OpenSession,
    Samples,
    SessionClosed,
    SessionDetails,
    SessionOpened,
    Stepped,
    TokenStep,
)
from stablernn_server.streams.sessions import Session, check_one_process, state_norms
from stablernn_server.streams.stream import Stream, matches_reference, restore_stream

PREFIX = "/v1"
STEP_PATH = "/step"
SESSION_STEP_PATH = "/sessions/{session}/step"

router = APIRouter(prefix=PREFIX, tags=["streams"])


@router.post("/sessions", response_model=SessionOpened, openapi_extra=json_request(OpenSession))
async def open_session(request: Request) -> Response:
    """Begins a stream that the server keeps, or continues one from its state token."""
    context, active_request = get_context(request), get_request(request)
    body, _ = await context.read_json(active_request, request.scope, OpenSession)
    check_one_process(context.settings.workers, "Sessions are kept")
    stream = await _open_stream(context, active_request, body, context.create_caller(active_request))
    session = context.sessions.open(stream)
    return json_response(_describe(context, session))


@router.post(SESSION_STEP_PATH, response_model=Stepped, openapi_extra=json_request(Samples))
async def step_session(request: Request, session: str) -> Response:
    """Takes one or several samples; requests of one session run in the order in which they came."""
    return json_response(await _step_session(get_context(request), get_request(request), request.scope, session))


async def _step_session(
    context: AppContext, active_request: ActiveRequest, scope: Scope, session: str
) -> dict[str, Any]:
    """Return the content of the response."""
    # Before the body is read: a client of a session that is gone need not send it.
    context.sessions.check(session)
    body, size = await context.read_json(active_request, scope, Samples)
    caller = context.create_caller(active_request)
    async with context.sessions.hold(session, caller) as entry:
        content, last_outputs = await _advance(context, active_request, entry.stream, body, size, caller)
        entry.last_outputs = last_outputs or entry.last_outputs
    return {"session_id": session, **content}


async def step_session_directly(
    context: AppContext, active_request: ActiveRequest, scope: Scope, match: re.Match[str]
) -> RawResponse:
    """Answer as :func:`step_session` does, without the framework."""
    return RawResponse(200, json_body(await _step_session(context, active_request, scope, match[1])))


@router.get("/sessions/{session}", response_model=SessionDetails)
async def show_session(
    request: Request,
    session: str,
    token: bool = Query(default=False, description="Whether the response has a state token."),
) -> Response:
    """Shows the step and the state of a session; this does not keep the session alive."""
    context, active_request = get_context(request), get_request(request)
    entry = context.sessions.peek(session)
    active_request.model = entry.stream.model
    age, idle, _ = context.sessions.ages(session)
    content = _describe(context, entry) | {
        "age_seconds": age,
        "idle_seconds": idle,
        "states": state_norms(entry.stream),
        "last": entry.last_outputs,
    }
    intervals = online.intervals if (online := stream_spec(entry.stream.model).online) is not None else None
    if intervals is not None:
        # Without the axis over streams.
        content["coverage"] = intervals.coverage({name: value[0] for name, value in entry.stream.states.items()})
    if token:
        content["state_token"] = context.state_keys.issue(entry.stream.snapshot())
    return json_response(content)


@router.delete("/sessions/{session}", response_model=SessionClosed)
async def close_session(request: Request, session: str) -> Response:
    """Ends a session, after its requests that are in flight."""
    context, active_request = get_context(request), get_request(request)
    context.sessions.check(session)
    # The body has no meaning here, but until it is read, nobody can tell whether the client is still there.
    await context.read_body(active_request, request.scope, context.settings.json_limit)
    async with context.sessions.hold(session, context.create_caller(active_request)) as entry:
        active_request.model = entry.stream.model
        context.sessions.close(session)
    return json_response({"session_id": session, "step": entry.stream.step, "closed": True})


@router.post(STEP_PATH, response_model=Stepped, openapi_extra=json_request(TokenStep))
async def step_token(request: Request) -> Response:
    """Takes samples of a stream whose state the client keeps: the request has a state token, the response the next."""
    return json_response(await _step_token(get_context(request), get_request(request), request.scope))


async def _step_token(context: AppContext, active_request: ActiveRequest, scope: Scope) -> dict[str, Any]:
    """Return the content of the response."""
    body, size = await context.read_json(active_request, scope, TokenStep)
    caller = context.create_caller(active_request)
    stream = await _open_stream(context, active_request, body, caller)
    # Without a token in the response, the stream would be lost.
    body = body.model_copy(update={"token": True})
    content, _ = await _advance(context, active_request, stream, body, size, caller)
    return content


async def step_token_directly(
    context: AppContext, active_request: ActiveRequest, scope: Scope, match: re.Match[str]
) -> RawResponse:
    """Answer as :func:`step_token` does, without the framework."""
    return RawResponse(200, json_body(await _step_token(context, active_request, scope)))


STEP_ROUTES = (
    DirectRoute(re.compile(r"/v1/step"), PREFIX + STEP_PATH, step_token_directly, is_in_framework=True),
    DirectRoute(
        re.compile(r"/v1/sessions/([^/]+)/step", re.DOTALL),
        PREFIX + SESSION_STEP_PATH,
        step_session_directly,
        is_in_framework=True,
    ),
)
"""The routes whose requests repeat the most."""


async def _open_stream(
    context: AppContext, active_request: ActiveRequest, body: OpenSession | TokenStep, caller: Caller
) -> Stream:
    """Return the stream that a request begins or continues."""
    if body.state_token is None:
        if body.model is None:
            raise InputError("model is missing: name the model of a new stream, or give the state_token of a stream.")
        active_request.model = model = await context.models.find_open(body.model, deadline=caller.deadline)
        spec = stream_spec(model)
        takes_static = spec.static_size or body.static is not None
        return Stream(model, static=parse_static(spec, body.static) if takes_static else None)
    if body.static is not None:
        raise InputError("static is for the beginning of a stream; its state_token holds what was given then.")
    snapshot = context.state_keys.read(body.state_token)
    if body.model is not None and not matches_reference(snapshot, body.model):
        raise OtherModelError(
            f"The state token is of '{snapshot.model}', the request names '{cut(body.model)}'; leave model out, or "
            "begin a new stream without the token."
        )
    stream = await restore_stream(snapshot, context.models, caller.deadline)
    active_request.model = stream.model
    return stream


async def _advance(
    context: AppContext, active_request: ActiveRequest, stream: Stream, body: Samples, size: int, caller: Caller
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Advance a stream by the samples; return the content of the response, and the last outputs, None without any."""
    active_request.model = stream.model
    stepped = await advance_stream(context.scheduler, stream, body, context.settings, caller, size=size)
    # One stream, however many samples.
    active_request.record_result(stepped.inference, 1)
    content: dict[str, Any] = {
        "model": stream.model.name,
        "model_version": str(stream.model.version),
        "step": stream.step,
        "outputs": stepped.outputs,
    }
    if body.token:
        content["state_token"] = context.state_keys.issue(stream.snapshot())
    return content | stepped.warnings, stepped.last_outputs


def _describe(context: AppContext, session: Session) -> dict[str, Any]:
    stream = session.stream
    spec = stream_spec(stream.model)
    return {
        "session_id": session.id,
        "model": stream.model.name,
        "model_version": str(stream.model.version),
        "digest": stream.model.digest,
        "step": stream.step,
        "expires_in_seconds": context.sessions.ages(session.id)[2],
        "sample_shape": list(spec.sample_shape),
        "patch_stride": spec.format.patch_stride,
        "outputs": list(spec.outputs),
    }
