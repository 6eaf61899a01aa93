"""``POST /v2/models/.../infer``: tensors in, tensors out; bypasses FastAPI."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import RefError, parse_ref
from stablernn_runtime.run_batch import BatchItem
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.stream_spec import PatchOutputs, stream_spec
from stablernn_runtime.validation import ignore_first_dt
from stablernn_server.batching.types import Caller, InferenceResult
from stablernn_server.codecs.json_values import OFFLOAD_BYTES, run_in_thread_if_large
from stablernn_server.codecs.open_inference import (
    MAX_TEMPLATES,
    InferRequest,
    ResponseTemplate,
    create_response_template,
    decode_binary_with_template,
    decode_raw_request,
    decode_with_template,
    encode_response,
    parse_json_length,
)
from stablernn_server.errors import InputError, MethodError, NoStreamsError, UnknownModelError
from stablernn_server.http.app_context import AppContext
from stablernn_server.http.middleware import DirectRoute
from stablernn_server.http.request import ActiveRequest, Scope, body_too_large, header_fields
from stablernn_server.http.responses import JSON, RawResponse, compress_if_accepted
from stablernn_server.settings import Settings
from stablernn_server.streams.triton_sequences import Sequence as TritonSequence

INFER_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer", re.DOTALL)
Array = NDArray[Any]
RAW = "application/octet-stream"


@dataclass(slots=True)
class RequestPattern:
    """The common part of like requests to one model, which are those of one template.

    Attributes:
        rows: Sequences of one request.
        time: Time steps of the sequences.
        names: The requested outputs.
        response: Their responses; None before the first one.
    """

    rows: int
    time: int
    names: Sequence[str]
    response: ResponseTemplate | None = None


async def infer(context: AppContext, active_request: ActiveRequest, scope: Scope, match: re.Match[str]) -> RawResponse:
    """Answer a request of the Open Inference Protocol v2 with Triton's extensions.

    Args:
        context: The application's context.
        active_request: The request.
        scope: The scope of the ASGI call.
        match: Match of :data:`INFER_PATH` with its path.

    Raises:
        ServerError: If the request cannot be answered.
    """
    if scope["method"] != "POST":
        raise MethodError(scope["method"], scope["path"], ["POST"])
    # Before the body is read: a client that names an unknown model need not send it.
    model = active_request.model = _find_served(context, active_request, match)
    length_header, accept_encoding = _read_headers(scope)
    settings = context.settings
    limit = settings.json_limit if length_header is None else settings.max_body_bytes
    body = await context.read_body(active_request, scope, limit)
    request: InferRequest | None = None
    if length_header == "0":
        # No JSON: which input the bytes are, and their type, only the model tells.
        caller = context.create_caller(active_request)
    else:
        json_length = len(body) if length_header is None else parse_json_length(body, length_header)
        if json_length > settings.json_limit:
            raise body_too_large(settings.json_limit)

        def decode() -> InferRequest:
            return (
                decode_with_template(body) if length_header is None else decode_binary_with_template(body, json_length)
            )

        request = await context.decode(active_request, body, decode, json_length)
        caller = context.create_caller(active_request, request.timeout_us, request.priority)
    if model is None:
        model = active_request.model = await _find_open(context, match, request, caller, active_request.identity.name)
    if request is None:
        request = decode_raw_request(body, model.sequence.inputs[model.input_name])
    pattern: RequestPattern | None = None
    if request.sequence is None:
        batch_item, pattern = _prepare(settings, model, request)
        rows = batch_item.rows
        samples_outside = _check_range(settings, model, batch_item.feeds)
        result = await context.scheduler.submit("sequence", model, batch_item, caller)
        result.samples_outside = samples_outside
    else:
        by_version = match[2] is not None or ":" in match[1]
        model, result = await _run_in_sequence(
            context, model, by_version, request, caller, active_request.identity.name
        )
        active_request.model, rows = model, len(request.inputs[model.input_name])
    active_request.record_result(result, rows)
    if pattern is not None and not result.violations and not result.samples_outside:
        response = _respond_alike(pattern, model, request, result, accept_encoding)
        if response is not None:
            return response
    return await _respond(model, request, result, accept_encoding)


INFER_ROUTE = DirectRoute(INFER_PATH, "/v2/models/{model}/infer", infer)


def _find_served(context: AppContext, request: ActiveRequest, match: re.Match[str]) -> ServedModel | None:
    """Return the model that a path names; None if it has to be opened, or only sequences still run it.

    Raises:
        UnknownModelError: If there is no such model.
    """
    try:
        return context.models.get_for_request(*context.models.resolve(match[1], match[2]))
    except UnknownModelError:
        if _model_of_sequences(context, request.identity.name, match) is None:
            raise
        return None


async def _find_open(
    context: AppContext, match: re.Match[str], request: InferRequest | None, caller: Caller, owner: str
) -> ServedModel:
    """Return the model that a path names, opened, or that of the sequence which a request continues.

    Raises:
        UnknownModelError: If there is neither.
    """
    try:
        return await context.models.find_open(match[1], match[2], caller.deadline)
    except UnknownModelError:
        # A sequence goes on with the version that it began with, although that is not served any more.
        control = None if request is None else request.sequence
        model = None if control is None or control.start else _model_of_sequences(context, owner, match)
        if model is None:
            raise
        return model


def _read_headers(scope: Scope) -> tuple[str | None, str | None]:
    """Return the length of the JSON before raw tensors, and the accepted encodings, as they were sent."""
    fields = header_fields(scope)
    length, encodings = fields.get(b"inference-header-content-length"), fields.get(b"accept-encoding")
    return (
        None if length is None else length.decode("latin-1"),
        None if encodings is None else encodings.decode("latin-1"),
    )


def _model_of_sequences(context: AppContext, owner: str, match: re.Match[str]) -> ServedModel | None:
    """Return the model of an owner's sequences that began with the version a request names; None if there are none."""
    try:
        ref = parse_ref(match[1] if match[2] is None else f"{match[1]}:{match[2]}")
    except RefError:
        return None
    return None if ref.version is None else context.sequences.model_of(ref.name, ref.version, owner)


def _prepare(settings: Settings, model: ServedModel, request: InferRequest) -> tuple[BatchItem, RequestPattern | None]:
    """Check a request that belongs to no sequence, and return its inputs as the graph takes them."""
    template = request.template
    pattern: RequestPattern | None = None if template is None else model.request_patterns.get(template)
    if pattern is not None:
        # Such a request has passed all checks but that of the values, which decoding by a template includes.
        return BatchItem(dict(request.inputs), pattern.rows, pattern.time, pattern.names), pattern
    _check_size(settings, model, request)
    inputs = request.inputs
    if "dt" in inputs and not any(state.input in inputs for state in model.states):
        inputs = _ignore_first_dt(model, inputs)
    batch_item = model.prepare(model.sequence, inputs, _output_names(request), from_client=True)
    if template is not None and batch_item.feeds.keys() == {model.input_name}:
        if len(model.request_patterns) >= MAX_TEMPLATES:
            model.request_patterns.clear()
        model.request_patterns[template] = RequestPattern(batch_item.rows, batch_item.time, batch_item.names)
    return batch_item, None


def _respond_alike(
    pattern: RequestPattern,
    model: ServedModel,
    request: InferRequest,
    result: InferenceResult,
    accept_encoding: str | None,
) -> RawResponse | None:
    """Return the response to a request of a template by that to an earlier one; None where they have no template."""
    response = pattern.response
    if response is None:
        if sum(value.nbytes for value in result.outputs.values()) > OFFLOAD_BYTES:
            return None
        head = _response_head(model, request, result)
        response = pattern.response = create_response_template(head, request, result.outputs, model.manifest.labels)
        if response is None:
            return None
    values = result.outputs[response.output]
    if values.shape != response.shape:
        return None
    return _create_response(response.fill(values), response.json_length, accept_encoding)


def _check_size(settings: Settings, model: ServedModel, request: InferRequest) -> None:
    # (batch, time, features); inputs of another rank are refused by the model.
    x = request.inputs.get(model.input_name)
    if x is not None and x.ndim == len(model.sequence.inputs[model.input_name].shape):
        settings.check_sequences(x.shape[0], x.shape[1], model.count_elements(x.shape[0], x.shape[1]))


def _check_range(settings: Settings, model: ServedModel, inputs: Mapping[str, Array]) -> int:
    """Return how many samples lie outside the range for which the model is certified.

    Raises:
        InputError: If there are any, and the settings refuse them.
    """
    guard, lengths = model.guard.inputs, inputs.get("lengths")
    return guard.check(inputs[model.input_name], lengths, model.ref, is_refused=settings.refuse_inputs_outside)


def _output_names(request: InferRequest) -> list[str] | None:
    return None if request.outputs is None else [output.name for output in request.outputs]


async def _run_in_sequence(
    context: AppContext,
    model: ServedModel,
    by_version: bool,
    request: InferRequest,
    caller: Caller,
    owner: str,
) -> tuple[ServedModel, InferenceResult]:
    """Continue from the states of the sequence's last request, with the version that it began with."""
    control = request.sequence
    assert control is not None
    if model.resample_steps is not None:
        # A sequence in parts would be resampled part by part.
        raise NoStreamsError(model.ref, model.resample_steps)
    _check_size(context.settings, model, request)
    names = _output_names(request)
    x = request.inputs.get(model.input_name)
    if x is None or x.ndim == 0:
        got = "no such input" if x is None else "one of shape ()"
        raise InputError(
            f"Each request of a sequence must have the input '{model.input_name}' with the series along its first "
            f"axis, got {got}."
        )
    async with context.sequences.hold(
        model,
        control.id,
        len(x),
        caller=caller,
        start=control.start,
        end=control.end,
        owner=owner,
        by_version=by_version,
    ) as sequence:
        sequence_model = sequence.model
        states = {state.input: state.output for state in sequence_model.states}
        if sent_states := [name for name in states if name in request.inputs]:
            raise InputError(
                f"The server keeps the input '{sent_states[0]}' of a sequence; leave out that input or sequence_id."
            )
        requested = list(sequence_model.sequence.outputs) if names is None else list(names)
        # The new states as well, for the next request.
        outputs = [*requested, *(output for output in states.values() if output not in requested)]
        samples_outside = _check_range(context.settings, sequence_model, request.inputs)
        is_continued = bool(sequence.states)
        inputs = request.inputs if is_continued else _ignore_first_dt(sequence_model, request.inputs)
        if stream_spec(sequence_model).patches is not None:
            result = await _run_patches(context, sequence, inputs, outputs, is_end=control.end, caller=caller)
        else:
            result = await context.scheduler.run(sequence_model, {**inputs, **sequence.states}, outputs, caller=caller)
            sequence.set_states({name: result.outputs[output] for name, output in states.items()})
        result.outputs = {name: result.outputs[name] for name in requested}
        result.samples_outside = samples_outside
        return sequence_model, result


async def _run_patches(
    context: AppContext,
    sequence: TritonSequence,
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
    *,
    is_end: bool,
    caller: Caller,
) -> InferenceResult:
    """Continue a sequence of a model of patches by the patches that its series fill; one that fills none has NaN.

    The last request of a sequence of a classifier answers as the whole series does, whose last patch need not be full.
    """
    model, patches = sequence.model, stream_spec(sequence.model).patches
    assert patches is not None
    states = {state.input: state.output for state in model.states}
    names = [name for name in outputs if name not in states.values()]
    # Checked as a whole, with samples that stay in an unfinished patch.
    feeds = model.prepare(model.sequence, inputs, outputs).feeds
    samples = {name: feeds.pop(name) for name in (model.input_name, "dt") if name in feeds}
    lengths = feeds.pop("lengths", None)
    steps = np.zeros(sequence.rows, np.int64) + sequence.steps
    # A forecast starts from the last sample, so that the samples behind the last patch have no place in it.
    is_end = is_end and model.manifest.task == "classify"
    collected = patches.collect(sequence.states, steps, samples, lengths, is_end=is_end)
    total = InferenceResult({}, {}, set(), 0, 0, 1)
    results: list[PatchOutputs] = []
    for rows, group in collected.groups():
        time = int(collected.lengths[rows[0]])
        part = {name: value.reshape(len(rows), -1, *value.shape[3:])[:, :time] for name, value in group.items()}
        part |= {name: value[rows] for name, value in feeds.items()}
        part |= {name: sequence.states[name][rows] for name in states if name in sequence.states}
        batch_item = BatchItem(part, len(rows), time, outputs)
        result = await context.scheduler.submit("sequence", model, batch_item, caller)
        next_states = {name: result.outputs[output] for name, output in states.items()}
        # With an axis over the last patch alone, as the outputs of streams have it.
        results.append((rows, {name: result.outputs[name][:, None] for name in names}, next_states))
        total.violations |= result.violations
        total.queue_ns += result.queue_ns
        total.compute_ns += result.compute_ns
        total.batch_rows = max(total.batch_rows, result.batch_rows)
    zeros = {
        name: np.zeros((sequence.rows, *map(int, spec.shape[1:])), spec.dtype)
        for name, spec in model.sequence.inputs.items()
        if name in states
    }
    shapes = {name: tuple(map(int, model.sequence.outputs[name].shape[1:])) for name in names}
    answers, next_states = collected.merge({**zeros, **sequence.states}, results, shapes)
    for name, value in answers.items():
        missing = np.full((sequence.rows, *shapes[name]), np.nan, np.float32)
        total.outputs[name] = value[:, 0] if value.shape[1] else missing
    total.outputs |= {output: next_states[name] for name, output in states.items()}
    sequence.set_states(next_states)
    sequence.steps = steps + (samples[model.input_name].shape[1] if lengths is None else lengths)
    return total


def _response_head(model: ServedModel, request: InferRequest, result: InferenceResult) -> dict[str, Any]:
    head: dict[str, Any] = {"model_name": model.name, "model_version": str(model.version)}
    parameters: dict[str, Any] = {}
    if request.sequence is not None:
        parameters |= {
            "sequence_id": request.sequence.id,
            "sequence_start": request.sequence.start,
            "sequence_end": request.sequence.end,
        }
    if result.violations:
        parameters["states_outside_ball"] = ", ".join(sorted(result.violations))
    if result.samples_outside:
        parameters["samples_outside_range"] = result.samples_outside
    if parameters:
        head["parameters"] = parameters
    return head


def _ignore_first_dt(model: ServedModel, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return the inputs at the beginning of series, whose first ``dt`` has no sample before it, as in streams."""
    dt = inputs.get("dt")
    # A wrong rank or type is left to the model, which says so.
    if dt is None or dt.ndim != 2 or not dt.size or dt.dtype.kind not in "iuf":
        return inputs
    # A tensor of a binary request is a read-only view of the body.
    dt = dt.copy()
    ignore_first_dt(dt, slice(None), model.max_dt)
    return {**inputs, "dt": dt}


async def _respond(
    model: ServedModel, request: InferRequest, result: InferenceResult, accept_encoding: str | None
) -> RawResponse:
    def encode() -> RawResponse:
        head = _response_head(model, request, result)
        content, json_length = encode_response(head, request, result.outputs, model.manifest.labels)
        return _create_response(content, json_length, accept_encoding)

    return await run_in_thread_if_large(sum(value.nbytes for value in result.outputs.values()), encode)


def _create_response(content: bytes, json_length: int | None, accept_encoding: str | None) -> RawResponse:
    headers = {}
    if json_length is not None:
        headers["Inference-Header-Content-Length"] = str(json_length)
    if accept_encoding is not None:
        content, encoding = compress_if_accepted(content, accept_encoding)
        if encoding is not None:
            headers |= {"Content-Encoding": encoding, "Vary": "Accept-Encoding"}
    return RawResponse(200, content, JSON if json_length is None else RAW, headers)
