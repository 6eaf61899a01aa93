"""``/v1/sessions`` and ``/v1/step``: streams over plain HTTP, kept by the server or by the client."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from stablernn_runtime.stream_spec import stream_spec
from stablernn_server.batching.types import Caller
from stablernn_server.codecs.json_values import parse_object
from stablernn_server.errors import InputError, OtherModelError, cut, sentence_of
from stablernn_server.handlers.stream_inputs import parse_static
from stablernn_server.handlers.stream_steps import advance_stream
from stablernn_server.http.app_context import ActiveRequest, AppContext, context_of, in_hand_of
from stablernn_server.http.offload import offload
from stablernn_server.http.responses import json_response
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

router = APIRouter(prefix="/v1", tags=["streams"])

Body = TypeVar("Body", OpenSession, Samples, TokenStep)


@router.post("/sessions", response_model=SessionOpened, openapi_extra=json_request(OpenSession))
async def open_session(request: Request) -> Response:
    """Begins a stream that the server keeps, or goes on with one from its state token."""
    context, item = context_of(request), in_hand_of(request)
    body, _ = await _read(request, OpenSession)
    check_one_process(context.settings.workers, "Sessions are kept")
    stream = await _stream(context, item, body, context.caller(item))
    session = context.sessions.open(stream)
    return json_response(_about(context, session))


@router.post("/sessions/{session}/step", response_model=Stepped, openapi_extra=json_request(Samples))
async def step_session(request: Request, session: str) -> Response:
    """Takes one or several samples; requests of one session run in the order that they came."""
    context, item = context_of(request), in_hand_of(request)
    context.sessions.check(session)
    body, size = await _read(request, Samples)
    caller = context.caller(item)
    async with context.sessions.hold(session, caller) as found:
        answer, found.last_outputs = await _advanced(context, item, found.stream, body, size, caller)
    return json_response({"session_id": session, **answer})


@router.get("/sessions/{session}", response_model=SessionDetails)
async def show_session(
    request: Request,
    session: str,
    token: bool = Query(default=False, description="Whether the answer has a state token."),
) -> Response:
    """Shows where a session is; looking at it does not keep it alive."""
    context, item = context_of(request), in_hand_of(request)
    found = context.sessions.peek(session)
    item.model = found.stream.model
    age, idle, _ = context.sessions.ages(session)
    answer = _about(context, found) | {
        "age_seconds": age,
        "idle_seconds": idle,
        "states": state_norms(found.stream),
        "last": found.last_outputs,
    }
    if token:
        answer["state_token"] = context.state_keys.issue(found.stream.snapshot())
    return json_response(answer)


@router.delete("/sessions/{session}", response_model=SessionClosed)
async def close_session(request: Request, session: str) -> Response:
    """Ends a session, after the requests of it that are in hand."""
    context, item = context_of(request), in_hand_of(request)
    context.sessions.check(session)
    # It means nothing here; while it is not read, nobody can tell whether the client is still there.
    await context.read(item, request.scope, context.settings.json_limit)
    async with context.sessions.hold(session, context.caller(item)) as found:
        item.model = found.stream.model
        context.sessions.close(session)
    return json_response({"session_id": session, "step": found.stream.step, "closed": True})


@router.post("/step", response_model=Stepped, openapi_extra=json_request(TokenStep))
async def step_token(request: Request) -> Response:
    """Takes samples of a stream that the client keeps: a state token comes with them, the next one with the answer."""
    context, item = context_of(request), in_hand_of(request)
    body, size = await _read(request, TokenStep)
    caller = context.caller(item)
    stream = await _stream(context, item, body, caller)
    body = body.model_copy(update={"token": True})
    answer, _ = await _advanced(context, item, stream, body, size, caller)
    return json_response(answer)


async def _read(request: Request, schema: type[Body]) -> tuple[Body, int]:
    """The checked body, and how many bytes it has."""
    context, item = context_of(request), in_hand_of(request)
    content = await context.read(item, request.scope, context.settings.json_limit)
    try:
        body = await offload(len(content), lambda: schema.model_validate(parse_object(content)))
    except ValidationError as error:
        raise InputError(sentence_of(error, "the body")) from error
    return body, len(content)


async def _stream(context: AppContext, item: ActiveRequest, body: OpenSession | TokenStep, caller: Caller) -> Stream:
    """The stream that a request begins or goes on with."""
    if body.state_token is None:
        if body.model is None:
            raise InputError("model is missing: name the model of a new stream, or give the state_token of one.")
        item.model = model = await context.models.find_open(body.model, deadline=caller.deadline)
        plan = stream_spec(model)
        takes_static = plan.static_size or body.static is not None
        return Stream(model, static=parse_static(plan, body.static) if takes_static else None)
    if body.static is not None:
        raise InputError("static is for the beginning of a stream; its state_token holds what was given then.")
    portable = context.state_keys.read(body.state_token)
    if body.model is not None and not matches_reference(portable, body.model):
        raise OtherModelError(
            f"The state token is of '{portable.model}', the request names '{cut(body.model)}'; leave model out, or "
            "begin anew without the token."
        )
    stream = await restore_stream(portable, context.models, caller.deadline)
    item.model = stream.model
    return stream


async def _advanced(
    context: AppContext, item: ActiveRequest, stream: Stream, body: Samples, size: int, caller: Caller
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer to samples, and the outputs of the last of them."""
    item.model = stream.model
    stepped = await advance_stream(context.scheduler, stream, body, context.settings, caller, size=size)
    item.answered(stepped.inference, 1)
    answer: dict[str, Any] = {
        "model": stream.model.name,
        "model_version": str(stream.model.version),
        "step": stream.step,
        "outputs": stepped.outputs,
    }
    if body.token:
        answer["state_token"] = context.state_keys.issue(stream.snapshot())
    if stepped.violations:
        answer["states_outside_ball"] = stepped.violations
    return answer, stepped.last_outputs


def _about(context: AppContext, session: Session) -> dict[str, Any]:
    stream = session.stream
    plan = stream_spec(stream.model)
    return {
        "session_id": session.id,
        "model": stream.model.name,
        "model_version": str(stream.model.version),
        "digest": stream.model.digest,
        "step": stream.step,
        "expires_in_seconds": context.sessions.ages(session.id)[2],
        "sample_shape": list(plan.sample_shape),
        "outputs": list(plan.outputs),
    }
