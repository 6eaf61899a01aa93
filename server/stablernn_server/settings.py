"""Settings of a server, by keyword or by environment variable (``STABLERNN_<FIELD>``)."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from stablernn_runtime.engines.session import GpuOptions
from stablernn_runtime.online_streams import OnlineOptions
from stablernn_server.errors import SettingsError, TooLargeError, format_validation_error
from stablernn_server.transport.connections import parse_networks

_DAY = 86_400.0
_YEAR = 365 * _DAY


class Settings(BaseSettings):
    """Settings of one server process.

    Raises:
        SettingsError: If a field does not exist or a value is not valid; the message names the field.
    """

    model_config = SettingsConfigDict(env_prefix="STABLERNN_", env_ignore_empty=True, extra="forbid", frozen=True)

    registry: Path | None = Field(None, description="Root of the registry; default: the user's data folder.")
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Models to serve: NAME, NAME:VERSION or NAME@ALIAS; in the environment separated by commas. "
        "Default: the highest version of every model in the registry.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="auto, cpu or cuda; auto: where a GPU can be used, the faster of both for each kind of work, by "
        "measurement; else the CPU.",
    )
    device_id: int | None = Field(
        None,
        ge=0,
        description="Number of the GPU; default: the first one, with several processes process i takes GPU i modulo "
        "their number.",
    )
    gpu_mem_limit: int | None = Field(
        None, ge=2**20, description="Bytes that each graph may take on the GPU; default: all of its memory."
    )
    engine: str = Field(
        "auto",
        min_length=1,
        description="onnx (ONNX Runtime, without torch), torch, or another engine of an installed package. auto: onnx "
        "on the CPU, the faster of onnx and torch on a GPU.",
    )
    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0: any free one.")
    threads: int = Field(1, ge=1, description="Threads inside one inference. More than 1 gives up bit equality.")
    inferences: int | None = Field(
        None,
        ge=1,
        description="Inferences at a time; default: the number of CPUs, one less while runs are short, one more while "
        "they are long.",
    )
    workers: int = Field(1, ge=1, description="Server processes that share the port, the models and the state key.")
    max_batch_size: int = Field(64, ge=1, description="Largest number of sequences in one run, of all requests.")
    max_step_batch_size: int = Field(512, ge=1, description="Largest number of streams whose steps share one run.")
    max_queue_delay_ms: float = Field(
        0.0,
        ge=0,
        le=1000,
        allow_inf_nan=False,
        description="How long a batch that is not full waits for more requests; 0: it does not wait.",
    )
    max_queue: int = Field(1024, ge=1, description="Requests that may wait; above it, 503 is answered.")
    max_client_requests: int = Field(
        0, ge=0, description="Requests of one client (its token, else its address) that may wait or run; 0: no limit."
    )
    reload_seconds: float = Field(
        5.0,
        ge=0,
        le=_YEAR,
        allow_inf_nan=False,
        description="Interval at which served aliases are looked up again; 0: only at start.",
    )
    load_timeout_seconds: float = Field(
        60.0,
        gt=0,
        le=_DAY,
        allow_inf_nan=False,
        description="How long opening a version for the first time may take, in a process of its own.",
    )
    load_memory_bytes: int = Field(
        2 * 2**30, ge=2**20, description="Bytes of memory that the process of such a first opening may take."
    )
    memory_budget_bytes: int | None = Field(
        None, ge=1, description="Bytes that open models may take; above it, the least recently used are closed."
    )
    request_timeout_seconds: float = Field(
        60.0,
        gt=0,
        le=_DAY,
        allow_inf_nan=False,
        description="How long a request may wait and run; after that, 504 is answered.",
    )
    max_body_bytes: int = Field(64 * 2**20, ge=1, description="Largest request body with raw tensors, in bytes.")
    # Parsing JSON holds the GIL, so that a large body makes every other request wait.
    max_json_bytes: int = Field(16 * 2**20, ge=1, description="Largest JSON in one request, in bytes.")
    max_held_bytes: int = Field(
        512 * 2**20,
        ge=1,
        description="Bytes of all bodies and WebSocket frames in flight and still arriving; JSON above 64 KiB counts "
        "five times, with the arrays that it is read into.",
    )
    max_head_bytes: int = Field(
        64 * 2**10, ge=1024, description="Largest head of a request, in bytes; above it, 431 is answered."
    )
    max_head_fields: int = Field(100, ge=1, description="Fields in the head of a request; above it, 431 is answered.")
    head_timeout_seconds: float = Field(
        10.0,
        gt=0,
        le=_DAY,
        allow_inf_nan=False,
        description="How long the head of a request may take to arrive; on a new connection, from its acceptance on.",
    )
    max_connections: int | None = Field(
        None, ge=1, description="Open connections of one process; default: 0.8 of the files that it may open."
    )
    max_address_connections: int | None = Field(
        None,
        ge=1,
        description="Connections that one address may keep open, or requests in flight that proxies forward for it; "
        "default: a quarter of the connections. Above it, the connection that has been idle longest is closed; if none "
        "is, 503 is answered.",
    )
    forwarded_allow_ips: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Addresses or networks of proxies, * for all, whose X-Forwarded-For and X-Forwarded-Proto are "
        "trusted and whose connections have no limit of their own; in the environment separated by commas.",
    )
    refuse_inputs_outside: bool = Field(
        False,
        description="Refuse samples outside the range of inputs for which a version is certified; default: they are "
        "answered, counted and named in the response.",
    )
    adaptive_intervals: bool = Field(
        False,
        description="Streams also answer intervals that adapt to how often earlier ones missed; models that do not "
        "forecast quantiles of their own inputs are refused.",
    )
    drift_false_alarms: float | None = Field(
        None,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        description="Streams are tested for drift, with at most this many false alarms a reading on average; models "
        "without a certified forgetting time are refused. Default: no test.",
    )
    max_elements: int = Field(2**25, ge=1, description="Numbers in the inputs, outputs and states of one padded batch.")
    max_steps: int = Field(100_000, ge=1, description="Time steps of one padded batch.")
    read_timeout_seconds: float = Field(
        60.0, gt=0, le=_DAY, allow_inf_nan=False, description="How long a body may take to arrive."
    )
    write_timeout_seconds: float = Field(
        60.0,
        gt=0,
        le=_DAY,
        allow_inf_nan=False,
        description="How long a response may wait for its client to read any of it; then the connection is ended.",
    )

    session_ttl_seconds: float = Field(
        600.0, gt=0, le=_YEAR, allow_inf_nan=False, description="How long a session or sequence may be idle."
    )
    max_sessions: int = Field(
        10_000,
        ge=1,
        description="Sessions, and also sequences, that may be open; above it, the one that has been idle longest is "
        "evicted.",
    )
    max_session_queue: int = Field(16, ge=1, description="Requests that may wait for their turn in one session.")
    max_streams: int = Field(4096, ge=1, description="Streams that one WebSocket may carry.")
    token_ttl_seconds: float = Field(
        86_400.0, gt=0, le=100 * _YEAR, allow_inf_nan=False, description="How long a state token is valid."
    )
    state_key: SecretStr | None = Field(
        None, description="Key of state tokens: hex digits, or any text of at least 32 bytes; default: a random one."
    )
    state_key_file: Path | None = Field(None, description="File that holds the key of state tokens.")

    auth: Literal["auto", "off"] = Field(
        "auto", description="auto: requests need a token if one is configured. off: they never need one."
    )
    tokens_file: Path | None = Field(
        None, description="File with lines ROLE TOKEN, roles infer and admin, readable by its owner only."
    )
    infer_tokens: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (), description="Tokens that allow reading and inference; in the environment separated by commas."
    )
    admin_tokens: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (), description="Tokens that also allow loading and unloading models; in the environment separated by commas."
    )
    tls_cert_file: Path | None = Field(None, description="Certificate chain (PEM) for https.")
    tls_key_file: Path | None = Field(None, description="Private key of the certificate (PEM).")
    allowed_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Pages of other hosts that may call this server from a browser, such as https://app.example; "
        "in the environment separated by commas.",
    )
    access_log: Literal["text", "json", "off"] = Field("text", description="Format of the log line of each request.")
    metrics_dir: Path | None = Field(None, description="Folder in which several worker processes share their metrics.")
    traces: Literal["off", "otlp"] = Field(
        "off", description="otlp: send spans where the OTEL_* environment variables say. Needs the extra otel."
    )

    @cached_property
    def online_options(self) -> OnlineOptions:
        """Return the estimates that streams update with each sample."""
        return OnlineOptions(self.adaptive_intervals, self.drift_false_alarms)

    @cached_property
    def gpu_options(self) -> GpuOptions:
        """Return the settings of the GPU."""
        return GpuOptions(self.device_id, self.gpu_mem_limit, self.max_batch_size)

    @cached_property
    def json_limit(self) -> int:
        """Return the largest body of JSON only, in bytes."""
        return min(self.max_json_bytes, self.max_body_bytes)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(f"Settings: {format_validation_error(error, 'settings')}") from error

    @field_validator("models", "allowed_origins", "forwarded_allow_ips", mode="before")
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_networks(value)
        return value

    @field_validator("infer_tokens", "admin_tokens", mode="before")
    @classmethod
    def _hide_tokens(cls, value: Any) -> tuple[SecretStr, ...]:
        # Before validation, so that the message of a failed one cannot repeat a token.
        if isinstance(value, str):
            value = [part for part in value.split(",") if part.strip()]
        tokens = value if isinstance(value, tuple | list) else (value,)
        return tuple(token if isinstance(token, SecretStr) else SecretStr(str(token).strip()) for token in tokens)

    def check_sequences(self, batch: int, time_steps: int, elements: int) -> None:
        """Raise if a run over sequences is above a limit.

        Args:
            batch: Number of sequences.
            time_steps: Steps of the longest one.
            elements: Numbers in all inputs and outputs of the run (:meth:`.ServedModel.count_elements`).

        Raises:
            TooLargeError: With the numbers.
        """
        # Time steps run one after another, whatever the batch: they are what takes long.
        if time_steps > self.max_steps:
            raise TooLargeError(
                f"A sequence of {time_steps} time steps is longer than the limit of {self.max_steps}; send it in "
                "parts, or its end."
            )
        if elements > self.max_elements:
            raise TooLargeError(
                f"{batch} sequences padded to {time_steps} steps make {elements} numbers with outputs and states, the "
                f"limit is {self.max_elements}; send fewer or shorter series at a time."
            )

    def check_samples(self, streams: int, samples: int, elements: int) -> None:
        """Raise if steps of streams are above a limit.

        Args:
            streams: Number of streams.
            samples: Samples of each stream.
            elements: Numbers in all inputs and outputs of the steps.

        Raises:
            TooLargeError: With the numbers.
        """
        if samples > self.max_steps:
            raise TooLargeError(f"{samples} samples at a time are more than the limit of {self.max_steps}; send fewer.")
        if elements > self.max_elements:
            raise TooLargeError(
                f"{samples} samples of {streams} streams make {elements} numbers with outputs and states, the limit is "
                f"{self.max_elements}; send fewer at a time."
            )
