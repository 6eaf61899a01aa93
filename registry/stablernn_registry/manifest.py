"""The manifest: everything about one version except its bytes.

What the publisher gives is ``ManifestFields``; the registry adds name, version, time and the hash of every file. The
sha256 of the manifest file is the ``digest`` of the version.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from stablernn_registry.errors import RESTORE, IntegrityError, ManifestError, RegistryError, did_you_mean
from stablernn_registry.signature import Signature

SCHEMA: Literal[1] = 1
_FILENAME_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def plain_json(value: object, where: str = "") -> object:
    """Return ``value`` as plain JSON data: tuples become lists, numbers are finite, keys are strings.

    Raises:
        ValueError: Naming the place of the first value that JSON cannot hold.
    """
    at = f" at '{where}'" if where else ""
    if isinstance(value, str):
        return is_text(value, at)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no {value}{at}; give None where a figure is missing")
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"JSON keys are text, got {key!r}{at}")
            is_text(key, at)
        return {key: plain_json(item, f"{where}.{key}" if where else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise ValueError(f"JSON cannot hold a {type(value).__name__}{at}; give plain numbers, text, lists and dicts")


def is_text(value: str, at: str = "") -> str:
    """Return ``value`` if it can be written as UTF-8, which half of a surrogate pair cannot.

    Raises:
        ValueError: Otherwise; ``at`` says where it was found.
    """
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the text {value!r:.100} is not Unicode{at}") from error
    return value


def check_filename(filename: str) -> str:
    """Return ``filename`` if a version may hold a file of that name: ``model.onnx``, ``plots/loss.png``.

    Raises:
        ManifestError: If it is not a relative path of plain parts, which is what keeps ``..`` out of exported folders.
    """
    if len(filename) > 255 or not all(_FILENAME_PART.fullmatch(part) for part in filename.split("/")):
        raise ManifestError(
            f"A file in a version is named like 'weights.safetensors' or 'plots/loss.png' (A-Z a-z 0-9 . _ -, each "
            f"part starting with a letter or a digit), got {filename!r}."
        )
    return filename


def check_filenames(filenames: Iterable[str]) -> None:
    """Raise unless the names can all lie in one folder, on a disk that ignores case too.

    Raises:
        ManifestError: If a name is bad (see ``check_filename``), or two cannot lie side by side.
    """
    parts: dict[str, tuple[str, bool]] = {}
    for filename in filenames:
        check_filename(filename)
        pieces = filename.split("/")
        for depth in range(1, len(pieces) + 1):
            path, is_file = "/".join(pieces[:depth]), depth == len(pieces)
            other, other_is_file = parts.setdefault(path.lower(), (path, is_file))
            if other != path or other_is_file != is_file:
                raise ManifestError(
                    f"The files '{other}' and '{filename}' of a version cannot lie in one folder: names must differ by "
                    f"more than case, and a file is no folder."
                )


def _distinct(values: list[str] | None) -> list[str] | None:
    for index, value in enumerate(values or ()):
        if values and value in values[:index]:
            raise ValueError(f"the names must differ, got '{value}' twice")
    return values


def _signature(value: dict[str, Any]) -> dict[str, Any]:
    try:
        Signature.model_validate(value)
    except ValidationError as error:
        raise ValueError(format_validation_error(error, Signature)) from error
    return value


_Json = Annotated[dict[str, Any], BeforeValidator(plain_json)]
_Text = Annotated[str, AfterValidator(is_text)]
_Names = Annotated[list[_Text], AfterValidator(_distinct)]


class FileEntry(BaseModel):
    """Size and hash of one file of a version.

    Attributes:
        bytes: Length.
        sha256: 64 hex digits; the name of the blob.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class CalendarPeriod(BaseModel):
    """A period of the calendar, of which the model is told where each step lies.

    The features ``calendar_NAME_sin`` and ``calendar_NAME_cos`` are the sine and cosine of 2 pi (t - phase) / period,
    where t is the time of the step in seconds since 1970-01-01T00:00Z.

    Attributes:
        name: Such as ``week``.
        period: Length in seconds.
        phase: When one begins, in seconds since 1970-01-01T00:00Z.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1)
    period: float = Field(gt=0, allow_inf_nan=False)
    phase: float = Field(allow_inf_nan=False)

    @property
    def channels(self) -> tuple[str, str]:
        """Name of the two features."""
        return f"calendar_{self.name}_sin", f"calendar_{self.name}_cos"


class ManifestFields(BaseModel):
    """What the publisher says about a version.

    Attributes:
        task: ``classify``, ``forecast`` or ``predict-next``.
        cell: Key of the recurrent cell, e.g. ``lipschitz``.
        signature: Inputs, outputs and states of the graphs, see ``docs/registry.md``.
        labels: Class names in the order of the outputs; needed for ``classify``, and for ``predict-next`` those of the
            classes or switches.
        features: Names of the input features, in order; where the input is ``tokens``, the vocabulary.
        targets: Names of the forecast variables; needed for ``forecast``, and for ``predict-next`` where the output is
            ``real``.
        output: What ``predict-next`` says at each step: ``categorical``, ``bernoulli`` or ``real``.
        horizon: Steps ahead, 1 or more; needed for ``forecast``.
        context_length: Steps that the model looks back on, or None for any.
        season: Steps of one season; 1 means none.
        frequency: Offset word of the time stamps, e.g. ``W`` or ``D``.
        quantiles: Levels of the quantile output, ascending, each between 0 and 1.
        head: Of a forecast: ``direct``, all steps at once, or ``recursive``, one step, from which the next is made.
        future: Features whose values at the steps ahead may be given, in the order of the input ``future``.
        static: Names of the numbers that never change within a series, in the order of the input ``static``.
        calendar: Periods whose features follow from the time; these features stand in ``future``, too.
        preprocessing: Scaling and treatment of missing values, for people; the graphs hold the real thing.
        metrics: Figures by split, ``{"test": {"accuracy": 0.98}}``; None where a figure is missing.
        parity: Largest differences between torch and the exported graphs.
        certificate: Stability certificate, or None where none was computed.
        lineage: Data fingerprint, resolved config, code version, run.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )

    task: Literal["classify", "forecast", "predict-next"]
    cell: _Text = Field(min_length=1)
    signature: Annotated[_Json, AfterValidator(_signature)]
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
    def _complete(self) -> ManifestFields:
        needed = {"classify": ("labels",), "forecast": ("targets", "horizon")}.get(self.task, ())
        if self.output is not None:
            if self.task != "predict-next":
                raise ValueError(f"output is for the task 'predict-next', got task '{self.task}'")
            needed = ("targets",) if self.output == "real" else ("labels",)
        for field in needed:
            if not getattr(self, field):
                raise ValueError(f"task '{self.task}' needs the field '{field}', got {getattr(self, field)!r}")
        if self.quantiles and sorted(set(self.quantiles)) != self.quantiles:
            raise ValueError(f"quantiles must ascend, got {self.quantiles}")
        for field in ("head", "future", "static", "calendar"):
            if getattr(self, field) is not None and self.task != "forecast":
                raise ValueError(f"{field} is for the task 'forecast', got task '{self.task}'")
        made = [channel for period in self.calendar or () for channel in period.channels]
        for names, among, word in ((self.future, self.features, "features"), (made, self.future, "future")):
            strange = [name for name in names or () if name not in (among or ())]
            if strange:
                raise ValueError(f"'{strange[0]}' is known in advance and must be in {word}, which does not have it")
        return self

    @classmethod
    def parse(cls, fields: ManifestFields | Mapping[str, object]) -> ManifestFields:
        """Check the publisher's fields; those of a whole manifest are taken out of it.

        Raises:
            ManifestError: One sentence about the first field that is wrong.
        """
        # An instance is checked again: its dicts can have been changed since it was made.
        known = set(ManifestFields.model_fields)
        given = fields.model_dump(include=known) if isinstance(fields, ManifestFields) else dict(fields)
        try:
            return ManifestFields.model_validate(given)
        except ValidationError as error:
            raise ManifestError(
                f"The manifest cannot be written: {format_validation_error(error, ManifestFields)}."
            ) from error


class Manifest(ManifestFields):
    """One version as it is stored; see ``ManifestFields`` for what the publisher gives.

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
        """Return the bytes of the manifest file: ASCII JSON, keys sorted, no spaces, one newline at the end."""
        data = self.model_dump(mode="json")
        return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def decode(data: bytes, where: str) -> Manifest:
    """Read a manifest file whose hash was already found right.

    Raises:
        RegistryError: If a newer program wrote it.
        IntegrityError: If it is not a manifest.
    """
    try:
        tree = json.loads(data, parse_constant=_no_constant)
        if isinstance(tree, dict) and isinstance(tree.get("schema"), int) and tree["schema"] > SCHEMA:
            raise RegistryError(
                f"{where} has manifest schema {tree['schema']}, this stablernn reads up to {SCHEMA}. Update stablernn."
            )
        return Manifest.model_validate(tree)
    except ValidationError as error:
        raise IntegrityError(f"{where} is not a manifest: {format_validation_error(error, Manifest)}.") from error
    except RecursionError as error:
        raise IntegrityError(f"{where} is not a manifest: it nests objects or lists too deeply.") from error
    except ValueError as error:
        raise IntegrityError(f"{where} is not a manifest: {error}.") from error


def checked(data: bytes | None, name: str, version: int, digest: str, place: str) -> Manifest:
    """Read the manifest of one version.

    Args:
        data: Bytes of the file; None if there is none.
        name: Name of the model.
        version: Number of the version.
        digest: What the log says of it.
        place: Path of the file below the root, for messages.

    Raises:
        IntegrityError: If it is missing, damaged or that of another version.
        RegistryError: If a newer program wrote it.
    """
    what = f"The manifest of '{name}:{version}' ({place})"
    if data is None:
        raise IntegrityError(f"{what} is missing. {RESTORE}.")
    if digest_of(data) != digest:
        raise IntegrityError(f"{what} is damaged: its sha256 is not the digest in the log. {RESTORE}.")
    manifest = decode(data, what)
    if (manifest.name, manifest.version) != (name, version):
        raise IntegrityError(f"{what} is that of '{manifest.name}:{manifest.version}'. {RESTORE}.")
    return manifest


def digest_of(data: bytes) -> str:
    """Return ``sha256:`` and the hex hash of a manifest file's bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def format_validation_error(error: ValidationError, model: type[BaseModel]) -> str:
    """Turn the first complaint of pydantic into half a sentence that names the field."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown field '{field}'{did_you_mean(field, model.model_fields).rstrip('?').replace(' Did', '; did')}"
    if first["type"] == "missing":
        return f"the field '{field}' is missing"
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:] if not message.startswith("JSON") else message
    return (
        f"field '{field}': {message}" + ("" if first["type"] == "value_error" else f", got {first['input']!r}")
        if field
        else message
    )


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"JSON has no {word}")
