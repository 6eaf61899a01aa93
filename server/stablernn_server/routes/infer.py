"""``POST /v2/models/.../infer``: tensors in, tensors out, past the framework."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from stablernn_registry import RefError, parse_ref
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.validation import ignore_first_dt
from stablernn_server.batching.types import Caller, InferenceResult
from stablernn_server.codecs.open_inference import (
    InferRequest,
    decode_request,
    encode_response,
    json_bytes,
    raw_request,
)
from stablernn_server.errors import InputError, MethodError, UnknownModelError
from stablernn_server.handlers.timeseries import check_size
from stablernn_server.http.app_context import ActiveRequest, AppContext, Scope
from stablernn_server.http.body import too_large
from stablernn_server.http.middleware import DirectRoute
from stablernn_server.http.offload import offload
from stablernn_server.http.responses import JSON, RawResponse, compressed

INFER_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer", re.DOTALL)
Array = NDArray[Any]
RAW = "application/octet-stream"


async def infer(context: AppContext, item: ActiveRequest, scope: Scope, match: re.Match[str]) -> RawResponse:
    """The answer to a request by the Open Inference Protocol v2 with Triton's extensions.

    Args:
        context: Of the application.
        item: The request.
        scope: Of the ASGI call.
        match: Of :data:`INFER_PATH` with its path.

    Raises:
        ServerError: Whatever stands in the way of an answer.
    """
    if scope["method"] != "POST":
        raise MethodError(scope["method"], scope["path"], ["POST"])
    # Whoever names what is not served need not send the body.
    try:
        item.model = context.models.get(*context.models.resolve(match[1], match[2]))
    except UnknownModelError:
        if _continuing(context, match) is None:
            raise
    header = accepted = None
    for name, value in scope["headers"]:
        if name == b"inference-header-content-length":
            header = value.decode("latin-1")
        elif name == b"accept-encoding":
            accepted = value.decode("latin-1")
    settings = context.settings
    limit = settings.json_limit if header is None else settings.max_body_bytes
    body = await context.read(item, scope, limit)
    request: InferRequest | None = None
    if header == "0":
        caller = context.caller(item)
    else:
        request = await offload(len(body), lambda: _decode(body, header, settings.json_limit))
        caller = context.caller(item, request.timeout_us, request.priority)
    try:
        model = await context.models.find_open(match[1], match[2], caller.deadline)
    except UnknownModelError:
        control = None if request is None else request.sequence
        continuing = None if control is None or control.start else _continuing(context, match)
        if continuing is None:
            raise
        model = continuing
    item.model = model
    if request is None:
        request = raw_request(body, model.sequence.inputs[model.input_name])
    x = request.inputs.get(model.input_name)
    if x is not None and x.ndim == len(model.sequence.inputs[model.input_name].shape):
        check_size(model, x.shape[0], x.shape[1], settings)
    names = None if request.outputs is None else [output.name for output in request.outputs]
    if request.sequence is None:
        goes_on = any(state.input in request.inputs for state in model.states)
        inputs = request.inputs if goes_on else _begun(model, request.inputs)
        answer = await context.scheduler.run(model, inputs, names, caller=caller, from_client=True)
    else:
        by_version = match[2] is not None or ":" in match[1]
        model, answer = await _run_in_sequence(context, model, by_version, request, names, caller)
        item.model = model
    item.answered(answer, 1 if x is None else len(x))
    about: dict[str, Any] = {"model_name": model.name, "model_version": str(model.version)}
    parameters: dict[str, Any] = {}
    if request.sequence is not None:
        parameters |= {
            "sequence_id": request.sequence.id,
            "sequence_start": request.sequence.start,
            "sequence_end": request.sequence.end,
        }
    if answer.violations:
        parameters["states_outside_ball"] = ", ".join(sorted(answer.violations))
    if parameters:
        about["parameters"] = parameters
    size = sum(value.nbytes for value in answer.outputs.values())
    content, json_length, encoding = await offload(
        size, lambda: _encode(about, request, answer.outputs, model, accepted)
    )
    headers = {}
    if json_length is not None:
        headers["Inference-Header-Content-Length"] = str(json_length)
    if encoding is not None:
        headers |= {"Content-Encoding": encoding, "Vary": "Accept-Encoding"}
    return RawResponse(200, content, JSON if json_length is None else RAW, headers)


INFER = DirectRoute(INFER_PATH, "/v2/models/{model}/infer", infer)


def _continuing(context: AppContext, match: re.Match[str]) -> ServedModel | None:
    """Return the model of sequences that began with the version a request names, once it is not served any more."""
    try:
        ref = parse_ref(match[1] if match[2] is None else f"{match[1]}:{match[2]}")
    except RefError:
        return None
    return None if ref.version is None else context.sequences.model_of(ref.name, ref.version)


async def _run_in_sequence(
    context: AppContext,
    model: ServedModel,
    by_version: bool,
    request: InferRequest,
    names: Sequence[str] | None,
    caller: Caller,
) -> tuple[ServedModel, InferenceResult]:
    """Go on from where the sequence's last request left its states, with the version that it began with."""
    control = request.sequence
    assert control is not None
    x = request.inputs.get(model.input_name)
    if x is None or x.ndim == 0:
        got = "no such input" if x is None else "one of the shape ()"
        raise InputError(
            f"Each request of a sequence must have the input '{model.input_name}', its first axis over the series, got "
            f"{got}."
        )
    async with context.sequences.hold(
        model, control.id, len(x), caller=caller, start=control.start, end=control.end, by_version=by_version
    ) as sequence:
        answering = sequence.model
        states = {state.input: state.output for state in answering.states}
        if given := [name for name in states if name in request.inputs]:
            raise InputError(
                f"The input '{given[0]}' of a sequence is kept by the server; leave it or sequence_id out."
            )
        wanted = list(answering.sequence.outputs) if names is None else list(names)
        fetched = [*wanted, *(output for output in states.values() if output not in wanted)]
        goes_on = bool(sequence.states)
        inputs = {**(request.inputs if goes_on else _begun(answering, request.inputs)), **sequence.states}
        answer = await context.scheduler.run(answering, inputs, fetched, caller=caller)
        sequence.set_states({name: answer.outputs[output] for name, output in states.items()})
        answer.outputs = {name: answer.outputs[name] for name in wanted}
        return answering, answer


def _begun(model: ServedModel, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """The inputs of series that begin with them, whose first ``dt`` does not count, as in streams."""
    dt = inputs.get("dt")
    if dt is None or dt.ndim != 2 or not dt.size or dt.dtype.kind not in "iuf":
        return inputs
    # A tensor of a binary request is a read-only view of the body.
    dt = dt.copy()
    ignore_first_dt(dt, slice(None), model.max_dt)
    return {**inputs, "dt": dt}


def _decode(body: bytes, header: str | None, json_limit: int) -> InferRequest:
    head = json_bytes(body, header)
    if head > json_limit:
        raise too_large(json_limit)
    return decode_request(body, head)


def _encode(
    about: dict[str, Any],
    request: InferRequest,
    outputs: dict[str, Array],
    model: ServedModel,
    accepted: str | None,
) -> tuple[bytes, int | None, str | None]:
    content, json_length = encode_response(about, request, outputs, model.manifest.labels)
    if accepted is None:
        return content, json_length, None
    content, encoding = compressed(content, accepted)
    return content, json_length, encoding
