"""Opens versions of the registry: each is tried in a separate process first, see :mod:`stablernn_runtime.isolation`.

Models are closed again to fit a memory budget, and where only state tokens still use them.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

from stablernn_registry import Version
from stablernn_runtime.engines.loaded_graphs import ONNX, first_line
from stablernn_runtime.engines.plugins import AUTO, NATIVE
from stablernn_runtime.isolation import Abort
from stablernn_runtime.online_streams import attach_online_streams, create_online_streams
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.trial_load import has_passed, try_opening
from stablernn_server.errors import (
    DeadlineError,
    DeviceError,
    ModelLoadError,
    NotReadyError,
    ServerError,
    SettingsError,
)
from stablernn_server.observability.telemetry import Telemetry
from stablernn_server.settings import Settings

_TRIED_ENGINES = (ONNX, AUTO, NATIVE)
"""Engines that read the graphs of a version; those of other packages have to limit themselves how they open one."""

logger = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_SECONDS = 60.0
"""Time after which a version that could not be opened is tried again for an alias that points at it."""
MAX_TRIALS = 2
"""Versions that are tried in processes of their own at the same time: one that takes until its time is over leaves room
for others, and each may take as much memory as the settings allow."""

Refusals = Mapping[str, ModelLoadError]
"""Reasons why versions failed their trial, by digest."""
VersionKey = tuple[str, int]
"""Name and number of a version."""


MAX_TOKEN_MODELS = 8
"""Versions that are open for state tokens only: after several releases in a row, streams of as many versions drain side
by side, and opening a version takes many times as long as a step."""


class _UntriedError(Exception):
    """Raised while the repository is locked: a version has to be tried first, without the lock."""

    def __init__(self, version: Version) -> None:
        super().__init__(version.ref)
        self.version = version


class VersionLoader:
    """Opens versions, and remembers those that could not be opened."""

    def __init__(self, settings: Settings, telemetry: Telemetry, root: Path, reasons: dict[VersionKey, str]) -> None:
        """Prepare to open versions.

        Args:
            settings: Engine, device, threads and limits.
            telemetry: Counts loads.
            root: Folder of the registry.
            reasons: Why versions are not open, by name and number; those that cannot be opened are added to it.
        """
        self._reasons = reasons
        self._settings = settings
        self._telemetry = telemetry
        self._root = root
        # Until when a version that could not be opened is not tried again, and why it could not.
        self._failures: dict[VersionKey, tuple[float, str]] = {}
        # By digest: the versions that are being tried. Requests for the same version share a trial.
        self._trials: dict[str, asyncio.Task[ModelLoadError | NotReadyError | None]] = {}
        self._trial_limit = asyncio.Semaphore(MAX_TRIALS)
        self._abort = Abort()

    def start_trials(self) -> None:
        """Let versions be tried, also after :meth:`stop_trials`."""
        self._abort = Abort()

    def stop_trials(self) -> None:
        """End the processes in which versions are tried, and start no more: the server stops."""
        self._abort.set()

    def try_and_open(self, version: Version) -> ServedModel:
        """Open a version on this thread, after a trial if it needs one.

        Raises:
            ModelLoadError: If it cannot be served.
            DeviceError, SettingsError: As :meth:`ServedModel.load`.
        """
        if not self._is_tried(version):
            self._try_out(version)
        return self._open_tried(version)

    async def open(self, version: Version, refusals: Refusals) -> ServedModel:
        """Open a version that was tried, on a thread; only for work of :meth:`run_with_trials`.

        Args:
            version: The version.
            refusals: As the work got them.

        Raises:
            ModelLoadError: If it cannot be served.
            DeviceError, SettingsError: As :meth:`ServedModel.load`.
        """
        if (error := refusals.get(version.digest)) is not None:
            raise error
        # On a thread, since it hashes the whole manifest.
        if not await asyncio.to_thread(self._is_tried, version):
            raise _UntriedError(version)
        return await asyncio.to_thread(self._open_tried, version)

    async def run_with_trials(self, work: Callable[[Refusals], Awaitable[T]], deadline: float | None = None) -> T:
        """Return the result of ``work``, which starts again after each version that it needs and that is untried.

        ``work`` locks the repository, trials do not: one may take as long as ``load_timeout_seconds``.

        Args:
            work: Gets the reasons why versions that were tried for it cannot be opened.
            deadline: Until when to wait, on the clock of the event loop.

        Raises:
            DeadlineError: If ``deadline`` passes during a trial.
            NotReadyError: If the server stops.
        """
        refusals: dict[str, ModelLoadError] = {}
        while True:
            try:
                return await work(refusals)
            except _UntriedError as untried:
                version = untried.version
            try:
                async with asyncio.timeout_at(deadline):
                    # Shielded: if this caller gives up, the trial goes on for others and for later requests.
                    error = await asyncio.shield(self._trial(version))
            except TimeoutError as timeout:
                raise deadline_error() from timeout
            if isinstance(error, ModelLoadError):
                refusals[version.digest] = error
            elif error is not None:
                raise error

    def check_not_failed(self, version: Version) -> None:
        """Raise if opening a version has failed a short while ago.

        Raises:
            ModelLoadError: With the reason from then.
        """
        until, reason = self._failures.get((version.name, version.version), (0.0, ""))
        if time.monotonic() < until:
            raise ModelLoadError(reason)

    def _trial(self, version: Version) -> asyncio.Task[ModelLoadError | NotReadyError | None]:
        """Return the task that tries a version, and gives the reason if it cannot be opened or the server stops."""
        task = self._trials.get(version.digest)
        if task is None:
            task = self._trials[version.digest] = asyncio.create_task(self._try_on_thread(version))
            task.add_done_callback(lambda _: self._trials.pop(version.digest, None))
        return task

    async def _try_on_thread(self, version: Version) -> ModelLoadError | NotReadyError | None:
        async with self._trial_limit:
            try:
                await asyncio.to_thread(self._try_out, version)
            except (ModelLoadError, NotReadyError) as error:
                # Returned, not raised: several callers wait for the task, or none.
                return error
        return None

    def _is_tried(self, version: Version) -> bool:
        """Return whether a version needs no trial; engines of packages have to limit themselves how they open one."""
        settings = self._settings
        return settings.engine not in _TRIED_ENGINES or has_passed(version, settings.threads, self._trial_engine)

    @property
    def _trial_engine(self) -> str:
        # What `auto` may take beside ONNX Runtime is torch, which builds nothing from a graph.
        return NATIVE if self._settings.engine == NATIVE else ONNX

    def _try_out(self, version: Version) -> None:
        """Open a version in a separate process, which may take a minute.

        Raises:
            ModelLoadError: If it cannot be opened.
            NotReadyError: If the server stops.
        """
        settings = self._settings
        started = time.perf_counter()
        try:
            try_opening(
                version,
                self._root,
                settings.threads,
                settings.load_timeout_seconds,
                settings.load_memory_bytes,
                self._abort,
                self._trial_engine,
            )
        except ModelLoadError as error:
            self._note_failure(version, error, started)
            raise

    def _open_tried(self, version: Version) -> ServedModel:
        """Open a version that was tried: its hashes, a warm-up run, and its two graphs against each other.

        Raises:
            ModelLoadError: If it cannot be served, whatever the reason.
            DeviceError, SettingsError: As :meth:`ServedModel.load`.
        """
        started = time.perf_counter()
        try:
            model = self._load(version)
        except ServerError as error:
            self._note_failure(version, error, started)
            trim_memory()
            raise
        self._failures.pop((version.name, version.version), None)
        self._telemetry.record_load(version.name, version.version, True, time.perf_counter() - started)
        return model

    def _load(self, version: Version) -> ServedModel:
        try:
            settings = self._settings
            model = ServedModel.load(version, settings.device, settings.threads, settings.engine, settings.gpu_options)
            # Before any stream begins, whose format they are part of.
            online = create_online_streams(model.manifest, model.patch_stride, settings.online_options)
            if online is not None:
                online.observer = partial(self._telemetry.record_estimates, model.name, model.version)
                attach_online_streams(model, online)
            return model
        except (ModelLoadError, DeviceError, SettingsError):
            raise
        except Exception as error:
            # A bug, here or in an engine of a package: the server goes on with the models that it has.
            logger.exception("%s could not be opened", version.ref)
            raise ModelLoadError(
                f"'{version.ref}' cannot be served: opening it failed with {type(error).__name__}: "
                f"{first_line(error)} The server's log says where."
            ) from error

    def _note_failure(self, version: Version, error: ServerError, started: float) -> None:
        self._telemetry.record_load(version.name, version.version, False, time.perf_counter() - started)
        self._reasons[version.name, version.version] = str(error)
        self._failures[version.name, version.version] = (time.monotonic() + RETRY_SECONDS, str(error))


def deadline_error() -> DeadlineError:
    """Return the error for a request whose model is not open in time."""
    return DeadlineError("The deadline passed before the model was open; give more time or retry.")


class TokenModels:
    """Open models that are not served and only continue streams of state tokens, at most :data:`MAX_TOKEN_MODELS`."""

    def __init__(self) -> None:
        # By digest, the most recently used last.
        self._models: dict[str, ServedModel] = {}

    def __len__(self) -> int:
        return len(self._models)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def add(self, model: ServedModel) -> bool:
        """Add a model, or mark it as the most recently used; let go of the least recently used beyond the limit.

        Returns:
            Whether it was not among them before.
        """
        previous = self._models.pop(model.digest, None)
        self._models[model.digest] = model
        while len(self._models) > MAX_TOKEN_MODELS:
            del self._models[next(iter(self._models))]
        return previous is not model

    def discard(self, digest: str) -> bool:
        """Let go of a model; return whether it was there."""
        return self._models.pop(digest, None) is not None

    def close_unused(self, since: float) -> bool:
        """Let go of the models that were last used before ``since``, on the monotonic clock; return whether any was."""
        expired = [digest for digest, model in self._models.items() if model.last_used < since]
        for digest in expired:
            logger.info("%s is closed: the state tokens of its streams have expired", self._models.pop(digest).ref)
        return bool(expired)


class MemoryBudget:
    """The memory that all living models take, whoever holds them, and its limit.

    Models that sessions and requests hold live on after they are closed, and count as long as they do.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        """Set the limit.

        Args:
            limit_bytes: The limit; None for none.
        """
        self._limit_bytes = limit_bytes
        self._living: WeakSet[ServedModel] = WeakSet()

    def add(self, model: ServedModel) -> None:
        """Count a model as long as it lives."""
        self._living.add(model)

    def make_room(
        self,
        needed: ServedModel,
        served: Iterable[ServedModel],
        token_models: TokenModels,
        close: Callable[[str, int], None],
    ) -> None:
        """Close the least recently used models until all that lives fits the limit, or none is left to close.

        Args:
            needed: A model that stays open.
            served: The open models that are served; an iterator, since a list would keep them alive.
            token_models: The models that are open for state tokens.
            close: Closes a version that is served, by name and number.
        """
        if self._limit_bytes is None:
            return
        before = self._living_bytes()
        # Not the models themselves, or they would live as long as this list.
        idle: list[tuple[float, str, VersionKey]] = sorted(
            (model.last_used, model.digest, (model.name, model.version))
            for models in (served, token_models)
            for model in models
            if model is not needed
        )
        for _, digest, (name, number) in idle:
            if self._living_bytes() <= self._limit_bytes:
                break
            if not token_models.discard(digest):
                close(name, number)
                logger.info("%s:%d is closed to make room", name, number)
        if self._living_bytes() < before:
            trim_memory()

    def _living_bytes(self) -> int:
        return sum(model.memory_bytes for model in self._living)


def trim_memory() -> None:
    """Return freed memory to the system: glibc keeps it, and a server that changes models would seem to leak."""
    if sys.platform == "linux":
        # Other C libraries, such as musl, do not have it.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
