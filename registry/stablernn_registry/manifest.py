"""The manifest: everything about one version except its bytes.

The publisher provides ``ManifestFields``; the registry adds name, version, time and the hash of every file. The sha256
of the manifest file is the ``digest`` of the version.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from stablernn_registry.errors import (
    RESTORE,
    IntegrityError,
    ManifestError,
    RegistryError,
    did_you_mean,
    strip_controls,
)

SCHEMA: Literal[1] = 1
_NAMES_OF_TENSORS = {"x": "features", "logits": "labels", "probabilities": "labels", "mean": "targets"}
"""Fields that name the last axis of a tensor of the graphs."""
_FILENAME_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
Size = Annotated[int, Field(ge=1)] | Annotated[str, Field(min_length=1)]


def to_plain_json(value: object, path: str = "") -> object:
    """Return ``value`` as plain JSON data: tuples become lists, numbers are finite, keys are strings.

    Raises:
        ValueError: If JSON cannot represent a value; the message names the path of the first.
    """
    location = f" at '{path}'" if path else ""
    if isinstance(value, str):
        return check_text(value, location)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no {value}{location}; give None where a figure is missing")
        # Subclasses such as np.float64 become plain floats.
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"JSON keys are text, got {key!r}{location}")
            check_text(key, location)
        return {
            strip_controls(key): to_plain_json(member, f"{path}.{key}" if path else key)
            for key, member in value.items()
        }
    if isinstance(value, list | tuple):
        return [to_plain_json(member, f"{path}[{index}]") for index, member in enumerate(value)]
    raise ValueError(f"JSON cannot hold a {type(value).__name__}{location}; give plain numbers, text, lists and dicts")


def check_text(value: str, location: str = "") -> str:
    """Return ``value`` without control characters if it can be written as UTF-8, as half of a surrogate pair cannot.

    Raises:
        ValueError: If it cannot; ``location`` is appended to the message.
    """
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the text {value!r:.100} is not Unicode{location}") from error
    return strip_controls(value)


def check_filename(filename: str) -> str:
    """Return ``filename`` if a file in a version may have that name: ``model.onnx``, ``plots/loss.png``.

    Raises:
        ManifestError: If it is not a relative path of plain parts.
    """
    # This keeps ".." and absolute paths out of the folders that versions are exported to.
    if len(filename) > 255 or not all(_FILENAME_PART.fullmatch(part) for part in filename.split("/")):
        raise ManifestError(
            f"A file in a version is named like 'weights.safetensors' or 'plots/loss.png' (A-Z a-z 0-9 . _ -, each "
            f"part starting with a letter or a digit), got {filename!r}."
        )
    return filename


def check_filenames(filenames: Iterable[str]) -> None:
    """Check that files of these names can share a folder, even on a case-insensitive disk.

    Raises:
        ManifestError: If a name is bad (see ``check_filename``), or two names exclude each other.
    """
    parts: dict[str, tuple[str, bool]] = {}
    for filename in filenames:
        check_filename(filename)
        components = filename.split("/")
        # Folders count, too: "a" cannot be a file if "a/b" is one.
        for depth in range(1, len(components) + 1):
            path, is_file = "/".join(components[:depth]), depth == len(components)
            earlier_path, earlier_is_file = parts.setdefault(path.lower(), (path, is_file))
            if earlier_path != path or earlier_is_file != is_file:
                raise ManifestError(
                    f"The files '{earlier_path}' and '{filename}' of a version cannot lie in one folder: names must "
                    f"differ by more than case, and a file is no folder."
                )


class FrozenModel(BaseModel):
    """A model that takes its own fields only, of their types, and never changes; validators are built on first use."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        defer_build=True,
    )


class TensorSignature(FrozenModel):
    """One input or output of a graph.

    Attributes:
        name: Name in the graph.
        dtype: ``float32`` or ``int64``.
        shape: Size of each axis: a number if it is fixed, a name (``batch``, ``time``) if it varies.
        optional: True if a client of the server may omit it.
    """

    name: str = Field(min_length=1)
    dtype: Literal["float32", "int64"]
    shape: list[Size]
    optional: bool = False


class StateSignature(FrozenModel):
    """One recurrent state: an input for its value and an output for its next value.

    Attributes:
        input: Name of the input.
        output: Name of the output.
        shape: Shape of input and output.
        dtype: Type of input and output.
        role: Description for people, such as ``layer 0 hidden``.
    """

    input: str
    output: str
    shape: list[Size]
    dtype: Literal["float32", "int64"] = "float32"
    role: str = ""


class GraphSignature(FrozenModel):
    """Inputs and outputs of one graph.

    Attributes:
        inputs: Inputs in the order of the graph, with distinct names.
        outputs: Outputs in the order of the graph, with distinct names.
    """

    inputs: list[TensorSignature] = Field(min_length=1)
    outputs: list[TensorSignature] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_names_differ(self) -> GraphSignature:
        for side, tensors in (("input", self.inputs), ("output", self.outputs)):
            _check_no_twins(side, [tensor.name for tensor in tensors])
        return self


class Signature(FrozenModel):
    """The graphs of a version and their states.

    ``stablernn export`` writes all of them, except for the step and the states of a model that resamples complete
    sequences. A version that is not served needs none.

    Attributes:
        sequence: Graph over whole sequences, ``sequence.onnx``.
        step: Graph of one time step, ``step.onnx``.
        states: States that both graphs have as inputs and outputs.
        max_dt: Longest ``dt`` that the graphs accept; None if they accept any, or have no input ``dt``.
        resample_steps: Samples to which the graph resamples each sequence over its whole length; None if it reads them
            as they are. It needs complete sequences then: there is no step, and there are no states.
    """

    sequence: GraphSignature | None = None
    step: GraphSignature | None = None
    states: list[StateSignature] = Field(default_factory=list)
    max_dt: Annotated[float, Field(gt=0)] | None = None
    resample_steps: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _check_resampling(self) -> Signature:
        if self.resample_steps is not None and (self.step is not None or self.states):
            raise ValueError("a model with resample_steps needs complete sequences and has no step and no states")
        return self

    @model_validator(mode="after")
    def _check_states(self) -> Signature:
        # A shared input or output would let one state overwrite another.
        _check_no_twins("state", [state.input for state in self.states])
        _check_no_twins("state", [state.output for state in self.states])
        for kind, graph in (("sequence", self.sequence), ("step", self.step)):
            if graph is None:
                continue
            for state in self.states:
                for side, name, tensors in (
                    ("input", state.input, graph.inputs),
                    ("output", state.output, graph.outputs),
                ):
                    tensor = next((tensor for tensor in tensors if tensor.name == name), None)
                    if tensor is None:
                        raise ValueError(
                            f"the state '{state.input}' names the {side} '{name}', which {kind} does not have"
                        )
                    if (tensor.shape, tensor.dtype) != (state.shape, state.dtype):
                        raise ValueError(
                            f"the state '{state.input}' is {state.dtype} {state.shape}, the {side} '{name}' of {kind} "
                            f"is {tensor.dtype} {tensor.shape}"
                        )
        return self


def _check_no_twins(kind: str, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"the {kind} '{name}' is there twice")


def _check_distinct(values: list[str] | None) -> list[str] | None:
    for index, value in enumerate(values or ()):
        if values and value in values[:index]:
            raise ValueError(f"the names must differ, got '{value}' twice")
    return values


def _check_signature(value: dict[str, Any]) -> dict[str, Any]:
    try:
        Signature.model_validate(value)
    except ValidationError as error:
        raise ValueError(format_validation_error(error, Signature)) from error
    return value


_Json = Annotated[dict[str, Any], BeforeValidator(to_plain_json)]
_Text = Annotated[str, AfterValidator(check_text)]
_Names = Annotated[list[_Text], AfterValidator(_check_distinct)]


class FileEntry(FrozenModel):
    """Size and hash of one file of a version.

    Attributes:
        bytes: Size of the file.
        sha256: 64 hex digits; the name of the blob.
    """

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class CalendarPeriod(FrozenModel):
    """A calendar period; the position of each step in it is an input of the model.

    The features ``calendar_NAME_sin`` and ``calendar_NAME_cos`` are the sine and cosine of 2 pi (t - phase) / period,
    where t is the time of the step in seconds since 1970-01-01T00:00Z.

    Attributes:
        name: Name such as ``week``.
        period: Length in seconds.
        phase: Start of one such period, in seconds since 1970-01-01T00:00Z.
    """

    name: str = Field(min_length=1)
    period: float = Field(gt=0, allow_inf_nan=False)
    phase: float = Field(allow_inf_nan=False)

    @property
    def channels(self) -> tuple[str, str]:
        """Names of the two features."""
        return f"calendar_{self.name}_sin", f"calendar_{self.name}_cos"


class ManifestFields(FrozenModel):
    """The publisher's part of a manifest.

    Attributes:
        task: ``classify``, ``forecast`` or ``predict-next``.
        cell: Key of the recurrent cell, e.g. ``lipschitz``.
        signature: Inputs, outputs and states of the graphs, see ``docs/background/registry.md``.
        labels: Names of the classes or binary targets, in the order of the outputs; required for ``classify``, and for
            ``predict-next`` if the output is ``categorical`` or ``bernoulli``.
        features: Names of the input features, in order; if the input is ``tokens``, the vocabulary.
        targets: Names of the forecast variables; required for ``forecast``, and for ``predict-next`` if the output is
            ``real``.
        output: Type of the outputs of ``predict-next``: ``categorical``, ``bernoulli`` or ``real``.
        horizon: Number of forecast steps, 1 or more; required for ``forecast``.
        context_length: Number of past steps that the model reads, or None for any.
        season: Steps of one season; 1 means none.
        frequency: Frequency alias of the timestamps, e.g. ``W`` or ``D``.
        quantiles: Levels of the quantile output, ascending, each between 0 and 1.
        head: Forecast head: ``direct``, all steps at once, or ``recursive``, one step that is fed back as input.
        future: Features that are known in advance, in the order of the input ``future``.
        static: Features that are constant within a series, in the order of the input ``static``.
        calendar: Periods whose features are computed from the timestamps; ``future`` has these features, too.
        preprocessing: Scaling and treatment of missing values, which the graphs contain, and how tables are read. Where
            steps are days or longer, ``repairs.timezone`` is the zone whose days they are.
        metrics: Metrics by split, ``{"test": {"accuracy": 0.98}}``; None if a value is missing.
        parity: Largest differences between torch and the exported graphs.
        certificate: Stability certificate, or None if none was computed.
        lineage: Data fingerprint, resolved config, code version, run.
    """

    task: Literal["classify", "forecast", "predict-next"]
    cell: _Text = Field(min_length=1)
    signature: Annotated[_Json, AfterValidator(_check_signature)]
    labels: _Names | None = None
    features: _Names
    targets: _Names | None = None
    output: Literal["categorical", "bernoulli", "real"] | None = None
    horizon: int | None = Field(default=None, ge=1)
    context_length: int | None = Field(default=None, ge=1)
    season: int | None = Field(default=None, ge=1)
    frequency: _Text | None = None
    quantiles: list[Annotated[float, Field(gt=0, lt=1)]] | None = None
    head: Literal["direct", "recursive"] | None = None
    future: _Names | None = None
    static: _Names | None = None
    calendar: list[CalendarPeriod] | None = None
    preprocessing: _Json = Field(default_factory=dict)
    metrics: _Json = Field(default_factory=dict)
    parity: _Json = Field(default_factory=dict)
    certificate: _Json | None = None
    lineage: _Json = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_task_fields(self) -> ManifestFields:
        required_fields = {"classify": ("labels",), "forecast": ("targets", "horizon")}.get(self.task, ())
        if self.output is not None:
            if self.task != "predict-next":
                raise ValueError(f"output is for the task 'predict-next', got task '{self.task}'")
            required_fields = ("targets",) if self.output == "real" else ("labels",)
        for field in required_fields:
            if not getattr(self, field):
                raise ValueError(f"task '{self.task}' needs the field '{field}', got {getattr(self, field)!r}")
        if self.quantiles and sorted(set(self.quantiles)) != self.quantiles:
            raise ValueError(f"quantiles must ascend, got {self.quantiles}")
        for field in ("head", "future", "static", "calendar"):
            if getattr(self, field) is not None and self.task != "forecast":
                raise ValueError(f"{field} is for the task 'forecast', got task '{self.task}'")
        calendar_features = [channel for period in self.calendar or () for channel in period.channels]
        for names, allowed_names, field in (
            (self.future, self.features, "features"),
            (calendar_features, self.future, "future"),
        ):
            missing_names = [name for name in names or () if name not in (allowed_names or ())]
            if missing_names:
                raise ValueError(
                    f"'{missing_names[0]}' is known in advance and must be in {field}, which does not have it"
                )
        return self

    @classmethod
    def parse(cls, fields: ManifestFields | Mapping[str, object]) -> ManifestFields:
        """Validate the publisher's fields; from a whole manifest, only these fields are used.

        Raises:
            ManifestError: If a field is wrong; the message is one sentence about the first.
        """
        # Instances are validated again: their dictionaries are mutable and may have changed.
        publisher_fields = set(ManifestFields.model_fields)
        raw_fields = fields.model_dump(include=publisher_fields) if isinstance(fields, ManifestFields) else dict(fields)
        try:
            return _NewFields.model_validate(raw_fields)
        except ValidationError as error:
            raise ManifestError(
                f"The manifest cannot be written: {format_validation_error(error, ManifestFields)}."
            ) from error


class _NewFields(ManifestFields):
    """Fields of a manifest that is to be written, which has to keep rules that earlier ones may break."""

    @model_validator(mode="after")
    def _check_splits_and_names(self) -> _NewFields:
        for split, figures in self.metrics.items():
            if not isinstance(figures, dict):
                raise ValueError(f"metrics are those of a split such as 'test', got {figures!r:.100} at '{split}'")
        graphs = [self.signature.get(name) or {} for name in ("sequence", "step")]
        for tensor in (tensor for graph in graphs for side in graph.values() for tensor in side):
            field, size = _NAMES_OF_TENSORS.get(tensor["name"], ""), tensor["shape"][-1]
            names = getattr(self, field, None)
            if names is not None and isinstance(size, int) and size != len(names):
                raise ValueError(f"'{tensor['name']}' of the graphs has {size} {field}, got {len(names)}")
        return self


class Manifest(ManifestFields):
    """The manifest of one stored version; see ``ManifestFields`` for the publisher's part.

    Attributes:
        schema_number: Version of this format, 1; ``schema`` in JSON.
        name: Name of the model.
        version: Number of the version, 1 or more.
        created: Time of publishing, UTC, ``2026-11-20T07:30:00Z``.
        files: Size and hash by file name.
    """

    schema_number: Literal[1] = Field(default=SCHEMA, alias="schema")
    name: str
    version: int = Field(ge=1)
    created: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
    files: dict[str, FileEntry] = Field(min_length=1)

    def encode(self) -> bytes:
        """Encode the manifest file: ASCII JSON, keys sorted, no spaces, one newline at the end."""
        data = self.model_dump(mode="json")
        return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def decode(data: bytes, label: str) -> Manifest:
    """Decode a manifest file whose hash was already verified.

    Raises:
        RegistryError: If a newer program wrote it.
        IntegrityError: If it is not a manifest.
    """
    try:
        tree = json.loads(data, parse_constant=_reject_constant)
        # Before validation, which would report the new fields of a newer schema as damage.
        if isinstance(tree, dict) and isinstance(tree.get("schema"), int) and tree["schema"] > SCHEMA:
            raise RegistryError(
                f"{label} has manifest schema {tree['schema']}, this stablernn reads up to {SCHEMA}. Update stablernn."
            )
        return Manifest.model_validate(tree)
    except ValidationError as error:
        raise IntegrityError(f"{label} is not a manifest: {format_validation_error(error, Manifest)}.") from error
    except RecursionError as error:
        raise IntegrityError(f"{label} is not a manifest: it nests objects or lists too deeply.") from error
    except ValueError as error:
        raise IntegrityError(f"{label} is not a manifest: {error}.") from error


def verify_and_decode(data: bytes | None, name: str, version: int, digest: str, path: str) -> Manifest:
    """Verify the digest of a version's manifest and decode it.

    Args:
        data: Bytes of the file; None if there is none.
        name: Name of the model.
        version: Number of the version.
        digest: Digest of the version in the log.
        path: Path of the file below the root, for messages.

    Raises:
        IntegrityError: If the file is missing or damaged, or belongs to another version.
        RegistryError: If a newer program wrote it.
    """
    label = f"The manifest of '{name}:{version}' ({path})"
    if data is None:
        raise IntegrityError(f"{label} is missing. {RESTORE}.")
    # Hash first, so that only bytes that the log vouches for are parsed.
    if digest_of(data) != digest:
        raise IntegrityError(f"{label} is damaged: its sha256 is not the digest in the log. {RESTORE}.")
    manifest = decode(data, label)
    if (manifest.name, manifest.version) != (name, version):
        raise IntegrityError(f"{label} is that of '{manifest.name}:{manifest.version}'. {RESTORE}.")
    return manifest


def digest_of(data: bytes) -> str:
    """Return ``sha256:`` and the hex hash of a manifest file's bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def format_validation_error(error: ValidationError, model: type[BaseModel]) -> str:
    """Format the first error of pydantic as a clause that names the field."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown field '{field}'{did_you_mean(field, model.model_fields).rstrip('?').replace(' Did', '; did')}"
    if first["type"] == "missing":
        return f"the field '{field}' is missing"
    message = first["msg"].removeprefix("Value error, ")
    # The clause continues a sentence: "JSON" is the only capital to keep.
    message = message[0].lower() + message[1:] if not message.startswith("JSON") else message
    # Our own errors ("value_error") already show the value.
    return (
        f"field '{field}': {message}" + ("" if first["type"] == "value_error" else f", got {first['input']!r}")
        if field
        else message
    )


def _reject_constant(constant: str) -> NoReturn:
    # json.loads accepts NaN and Infinity, which JSON does not have.
    raise ValueError(f"JSON has no {constant}")
