"""What a server can be told, by keyword or by environment variable (``STABLERNN_<FIELD>``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from stablernn_server.errors import SettingsError, sentence_of


class Settings(BaseSettings):
    """Settings of one server process.

    Raises:
        SettingsError: If a field does not exist or a value cannot be taken; the sentence names the field.
    """

    model_config = SettingsConfigDict(env_prefix="STABLERNN_", env_ignore_empty=True, extra="forbid", frozen=True)

    registry: Path | None = Field(None, description="Root of the registry; default: the user's data folder.")
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="What to serve: NAME, NAME:VERSION or NAME@ALIAS; in the environment separated by commas. "
        "Default: the highest version of every model in the registry.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA where it loads, else the CPU.")
    engine: Literal["auto", "onnx"] = Field("auto", description="auto: ONNX Runtime, the one engine without torch.")
    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535, description="0: any free port.")
    threads: int = Field(1, ge=1, description="Threads inside one inference. More than 1 gives up bit equality.")
    workers: int | None = Field(None, ge=1, description="Inferences at a time; default: the CPUs of this process.")
    max_body_bytes: int = Field(64 * 2**20, ge=1, description="Bytes of one request body with raw tensors.")
    # Parsing JSON holds the interpreter's lock, so that a large one makes every other request wait.
    max_json_bytes: int = Field(16 * 2**20, ge=1, description="Bytes of JSON in one request.")
    max_held_bytes: int = Field(512 * 2**20, ge=1, description="Bytes of all bodies in hand, read or still arriving.")
    max_elements: int = Field(2**25, ge=1, description="Numbers in and out of one padded batch, its states included.")
    max_steps: int = Field(100_000, ge=1, description="Time steps of one padded batch.")
    read_timeout_seconds: float = Field(60.0, gt=0, description="How long a body may take to arrive.")

    @property
    def json_limit(self) -> int:
        """Bytes that a body of JSON alone may have."""
        return min(self.max_json_bytes, self.max_body_bytes)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(f"Settings: {sentence_of(error, 'settings')}") from error

    @field_validator("models", mode="before")
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value
