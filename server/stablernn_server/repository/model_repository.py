"""The models that a server has open, how a request's words find one, and how versions come and go."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

from stablernn_registry import Ref, RefError, Registry, RegistryError, UnknownRefError, Version, parse_ref
from stablernn_registry.errors import did_you_mean
from stablernn_runtime.engines.loaded_graphs import ONNX, first_line
from stablernn_runtime.engines.plugins import AUTO
from stablernn_runtime.isolation import Abort
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.trial_load import is_known_sound, try_opening
from stablernn_server.errors import (
    DeadlineError,
    DeviceError,
    InputError,
    ModelLoadError,
    NotReadyError,
    OneProcessError,
    ServerError,
    SettingsError,
    UnknownModelError,
    VersionGoneError,
    cut,
)
from stablernn_server.observability.telemetry import Telemetry
from stablernn_server.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[str, int]
RETRY_SECONDS = 60.0
"""After which a version that could not be opened is tried again for an alias that points at it."""
KEPT_FOR_TOKENS = 8
"""Versions that are open for state tokens only: after several releases in a row, streams of as many versions drain side
by side, and opening a version takes many times as long as a step."""
CLOSED = "closed to make room; it is opened again when it is asked for"
MAX_TRIALS = 2
"""Versions that are tried in processes of their own at the same time: one that takes until its time is over leaves room
for others, and each may take as much memory as the settings allow."""

Refusals = Mapping[str, ModelLoadError]
"""By digest, why versions could not be opened in a process of their own."""


class _UntriedError(Exception):
    """Raised while the table is locked: a version has to be tried first, without the lock."""

    def __init__(self, version: Version) -> None:
        super().__init__(version.ref)
        self.version = version


class ModelRepository:
    """Open models by name and version.

    Without a version, a name answers with the version that was asked for by alias (the first, if several were), else
    with its highest one. A version that was closed to make room is opened again when it is asked for, unless a session
    or a request still holds its model, which then answers.

    Attributes:
        registry: Where versions come from.
    """

    def __init__(self, settings: Settings, telemetry: Telemetry) -> None:
        self.registry = Registry(settings.registry)
        self._settings = settings
        self._telemetry = telemetry
        # None: served, but closed to make room.
        self._models: dict[str, dict[int, ServedModel | None]] = {}
        self._digests: dict[Key, str] = {}
        # What a version is served for: references of the settings, and "load" for those that were loaded by hand.
        self._wanted: dict[Key, set[str]] = {}
        self._targets: dict[Ref, int] = {}
        self._reasons: dict[Key, str] = {}
        # Until when a version that could not be opened is not tried again, and why it could not.
        self._failed: dict[Key, tuple[float, str]] = {}
        self._aliases: dict[Key, tuple[str, ...]] = {}
        self._said: dict[Ref | str, str] = {}
        # Whoever holds them: this table, sessions, sockets, requests in hand.
        self._living: WeakSet[ServedModel] = WeakSet()
        self._by_digest: WeakValueDictionary[str, ServedModel] = WeakValueDictionary()
        # The last used at the end.
        self._for_tokens: dict[str, ServedModel] = {}
        # By digest: the versions that are being tried in processes of their own.
        self._trials: dict[str, asyncio.Task[ModelLoadError | NotReadyError | None]] = {}
        self._trial_limit = asyncio.Semaphore(MAX_TRIALS)
        self._lock = asyncio.Lock()
        self._work: set[asyncio.Task[Any]] = set()
        self._abort = Abort()

    @classmethod
    def open(cls, settings: Settings, telemetry: Telemetry) -> ModelRepository:
        """Open everything that the settings name.

        Raises:
            ModelLoadError: If a version cannot be served, or there is none to serve.
            DeviceError: If the device that was asked for is not there.
            stablernn_registry.RegistryError: If a reference names nothing, or the registry cannot be read.
        """
        table = cls(settings, telemetry)
        references = settings.models or tuple(entry.name for entry in table.registry.list())
        if not references:
            raise ModelLoadError(
                f"The registry {table.registry.root} holds no models; publish one with 'stablernn export'."
            )
        for reference in references:
            ref = parse_ref(reference)
            version = table.registry.get(ref)
            model = table.get(version.name, version.version)
            if model is None:
                if not table._is_tried(version):
                    table._try_out(version)
                model = table._opened(version)
            table._serve(model, reference)
            if ref.alias is not None:
                table._targets[ref] = version.version
        return table

    def get(self, name: str, version: int) -> ServedModel | None:
        """The model of a version that is served; None where it would have to be opened."""
        model = self._models.get(name, {}).get(version)
        return model or self._by_digest.get(self._digests.get((name, version), ""))

    def names(self) -> list[str]:
        return sorted(self._models)

    def keys(self) -> list[Key]:
        """Name and number of everything that answers, what is closed to make room included."""
        return [(name, number) for name in self.names() for number in self.versions(name)]

    def served(self) -> list[str]:
        """``NAME:VERSION`` of :meth:`keys`."""
        return [f"{name}:{number}" for name, number in self.keys()]

    def versions(self, name: str) -> list[int]:
        """Numbers of the versions that are served under a name, those included that are closed to make room."""
        return sorted(self._models.get(name, {}))

    async def find_open(self, reference: str, version: str | None = None, deadline: float | None = None) -> ServedModel:
        """The model that answers for ``reference``, opened again where it was closed to make room.

        Args:
            reference: ``NAME``, ``NAME@ALIAS`` or ``NAME:VERSION``.
            version: A number as text, from the path of the request.
            deadline: Until when to wait for one that has to be opened, on the clock of the event loop.

        Raises:
            InputError: If ``version`` is no number.
            UnknownModelError: If nothing that is served answers to these words.
            ModelLoadError: If it was closed, and cannot be opened again.
            DeadlineError: If it is not open in time.
        """
        found = self._ready(*self.resolve(reference, version))
        if found is None:
            found = await self._after_trials(
                lambda refusals: self._alone(lambda: self._reopen(reference, version, refusals), deadline), deadline
            )
        return found

    async def by_digest(self, digest: str, name: str, version: int, deadline: float | None = None) -> ServedModel:
        """Return the model of a stream that a client brings in a state token.

        Any version of a served name can be opened, wherever its aliases point. A version of another name cannot: a
        server that is restricted to some models opens no others.

        Args:
            digest: Of the version.
            name: Name of the model.
            version: Its number.
            deadline: As in :meth:`find_open`.

        Raises:
            VersionGoneError: If no version of the name is served, the registry does not have this one any more, or it
                cannot be opened.
            DeadlineError: If it is not open in time.
        """
        self._check_name_is_served(name, version)
        model = self._by_digest.get(digest)
        if model is None:
            ref = Ref(name, version)
            return await self._after_trials(
                lambda refusals: self._alone(lambda: self._open_for_token(digest, ref, refusals), deadline), deadline
            )
        self._keep_for_tokens(model)
        return model

    async def find_for_streams(self, reference: str, deadline: float | None = None) -> ServedModel | Version:
        """Return the model that answers for ``reference``, or a version that is not served but may have streams.

        The latter is named by its number, is not opened here, and is there for streams that go on from state tokens.

        Args:
            reference: As in :meth:`find_open`.
            deadline: Likewise.

        Raises:
            UnknownModelError: If nothing that is served answers to the reference, and it is not the number of a
                registered version of a served name.
            ModelLoadError, DeadlineError: As :meth:`find_open`.
        """
        try:
            return await self.find_open(reference, deadline=deadline)
        except UnknownModelError as error:
            ref = _parsed(reference)
            if ref.version is None or ref.name not in self._models:
                raise
            try:
                return await asyncio.to_thread(self.registry.get, ref)
            except RegistryError:
                raise error from None

    def close_unused(self) -> None:
        """Close what is open for state tokens only and was last used so long ago that all its tokens have expired."""
        oldest = time.monotonic() - self._settings.token_ttl_seconds
        expired = [digest for digest, model in self._for_tokens.items() if model.last_used < oldest]
        for digest in expired:
            logger.info("%s is closed: the state tokens of its streams have expired", self._for_tokens.pop(digest).ref)
        if expired:
            give_back_memory()

    def start_trials(self) -> None:
        """Let versions be opened in processes of their own, also after :meth:`stop_trials`."""
        self._abort = Abort()

    def stop_trials(self) -> None:
        """End the processes in which versions are opened for the first time, and start no more: the server stops."""
        self._abort.set()

    async def load(self, reference: str) -> ServedModel:
        """Open a version of the registry, or open it anew, and serve it; what is served goes on until it is warm.

        Args:
            reference: As on the command line; a bare name is what is served by alias under it, else the highest.

        Raises:
            UnknownModelError: If the registry has no such version.
            ModelLoadError: If it cannot be served; what was served before still is.
            OneProcessError: If other processes share the port.
        """
        self._check_one_process()
        ref = _parsed(reference)
        if ref.alias is None and ref.version is None:
            ref = next((each for each in self._targets if each.name == ref.name), ref)
        return await self._after_trials(lambda refusals: self._load(ref, refusals))

    async def _load(self, ref: Ref, refusals: Refusals) -> ServedModel:
        async with self._lock:
            model = await self._open_on_thread(await self._version(ref), refusals)
            self._serve(model, "load" if ref.alias is None else str(ref))
            if ref.alias is not None:
                self._move(ref, model.version)
        return model

    async def unload(self, reference: str) -> None:
        """Serve a version, or every version of a name, no more. Requests in hand and sessions go on with it.

        Raises:
            UnknownModelError: If it is neither served nor in the registry.
            OneProcessError: If other processes share the port.
        """
        self._check_one_process()
        ref = _parsed(reference)
        async with self._lock:
            numbers = self.versions(ref.name)
            try:
                if ref != Ref(ref.name) or not numbers:
                    numbers = [self.resolve(reference, None)[1]]
            except UnknownModelError:
                # It is not served already, which is what was asked for; what nobody knows is an error all the same.
                await self._version(ref)
                return
            for number in numbers:
                self._drop(ref.name, number, "unloaded on request")
            for each, number in list(self._targets.items()):
                if each.name == ref.name and number in numbers:
                    del self._targets[each]
        give_back_memory()

    async def follow(self) -> None:
        """Serve what the aliases point at now. What cannot be opened is logged; what was served before still is."""
        for ref in list(self._targets):
            try:
                await self._after_trials(functools.partial(self._follow, ref))
            except NotReadyError:
                # The server is shutting down.
                return
            except Exception as error:
                # Whatever it is, the other aliases are followed all the same.
                self._say_once(ref, f"{ref} is still answered by version {self._targets.get(ref)}: ", error)
            else:
                self._said.pop(ref, None)
        async with self._lock:
            names = self.names()
            # All are read before one is applied: an alias that moves from one version to another is never at neither.
            read = await asyncio.to_thread(lambda: [self._aliases_of(name) for name in names])
            for name, found in zip(names, read, strict=True):
                if isinstance(found, Exception):
                    self._say_once(name, f"{name}: its aliases cannot be read: ", found)
                    continue
                self._said.pop(name, None)
                for number in self.versions(name):
                    self._name(name, number, tuple(alias for alias, target in found.items() if target == number))

    async def _follow(self, ref: Ref, refusals: Refusals) -> None:
        async with self._lock:
            served = self._targets.get(ref)
            if served is None:
                # It was unloaded meanwhile.
                return
            # Most looks end here, and need no more than the log, which the registry keeps in memory.
            number = await asyncio.to_thread(self.registry.resolve, ref)
            if number == served:
                return
            version = await asyncio.to_thread(self.registry.get, Ref(ref.name, number))
            model = self._by_digest.get(version.digest)
            if model is None:
                self._check_not_failed(version)
                model = await self._open_on_thread(version, refusals)
            model.aliases = tuple(version.aliases)
            self._serve(model, str(ref))
            self._move(ref, version.version)
            logger.info("%s now answers with version %d", ref, version.version)

    def _aliases_of(self, name: str) -> dict[str, int] | Exception:
        """Where the aliases of a model point, all at one time; or why that cannot be read."""
        try:
            return self.registry.aliases(name)
        except Exception as error:
            return error

    def _say_once(self, about: Ref | str, what: str, error: Exception) -> None:
        """Log a failure that lasts when it begins, not at each look."""
        is_known = isinstance(error, RegistryError | ServerError)
        sentence = what + (str(error) if is_known else f"{type(error).__name__}: {error}")
        if self._said.get(about) != sentence:
            self._said[about] = sentence
            logger.error("%s", sentence, exc_info=None if is_known else error)

    def _name(self, name: str, number: int, aliases: tuple[str, ...]) -> None:
        self._aliases[name, number] = aliases
        model = self.get(name, number)
        if model is not None:
            model.aliases = aliases

    async def index(self) -> list[dict[str, str]]:
        """Every version of the registry and whether it is served, as Triton's repository index says it.

        Raises:
            ModelLoadError: If the registry cannot be read.
        """
        try:
            entries = await asyncio.to_thread(self.registry.list)
        except RegistryError as error:
            raise ModelLoadError(str(error)) from error
        found = []
        for entry in entries:
            for number in entry.versions:
                is_open = self.get(entry.name, number) is not None
                reason = "" if is_open else self._reasons.get((entry.name, number), "not loaded")
                found.append(
                    {
                        "name": entry.name,
                        "version": str(number),
                        "state": "READY" if is_open or reason == CLOSED else "UNAVAILABLE",
                        "reason": reason,
                    }
                )
        return found

    def _serve(self, model: ServedModel, wanted_for: str) -> None:
        """Let ``model`` answer from now on; one of the same version that did so drains by itself."""
        key = (model.name, model.version)
        self._wanted.setdefault(key, set()).add(wanted_for)
        self._aliases[key] = model.aliases
        self._put(model)

    def _put(self, model: ServedModel) -> None:
        key = (model.name, model.version)
        self._models.setdefault(model.name, {})[model.version] = model
        self._digests[key] = model.digest
        model.aliases = self._aliases[key]
        self._for_tokens.pop(model.digest, None)
        self._reasons.pop(key, None)
        self._enter(model)

    def _enter(self, model: ServedModel) -> None:
        self._living.add(model)
        self._by_digest[model.digest] = model
        model.last_requested = time.monotonic()
        self._make_room(model)

    def _ready(self, name: str, number: int) -> ServedModel | None:
        """The model of a version that is served, as used now; None where it has to be opened."""
        model = self.get(name, number)
        if model is not None:
            model.last_requested = time.monotonic()
            if self._models[name][number] is None:
                self._put(model)
        return model

    def _keep_for_tokens(self, model: ServedModel) -> None:
        if self._digests.get((model.name, model.version)) == model.digest:
            # It is served: what was closed to make room is open again.
            if self._ready(model.name, model.version) is None:
                self._put(model)
            return
        kept = self._for_tokens.pop(model.digest, None)
        self._for_tokens[model.digest] = model
        while len(self._for_tokens) > KEPT_FOR_TOKENS:
            del self._for_tokens[next(iter(self._for_tokens))]
        model.last_requested = time.monotonic()
        if kept is not model:
            self._enter(model)

    def _move(self, ref: Ref, number: int) -> None:
        """Let an alias answer with another version; the one before goes unless it is served for something else."""
        before = self._targets.get(ref)
        self._targets[ref] = number
        if before is not None and before != number:
            wanted = self._wanted.get((ref.name, before), set())
            wanted.discard(str(ref))
            if not wanted:
                self._drop(ref.name, before, f"the alias '{ref.alias}' has moved on to version {number}")
                give_back_memory()

    def _drop(self, name: str, number: int, reason: str) -> None:
        self._models[name].pop(number, None)
        for kept in (self._wanted, self._aliases, self._digests):
            kept.pop((name, number), None)
        self._reasons[name, number] = reason
        if not self._models[name]:
            del self._models[name]
            self._said.pop(name, None)

    def _make_room(self, needed: ServedModel) -> None:
        """Let go of what was not used for longest until all that lives fits the memory budget; ``needed`` stays.

        What sessions and requests hold lives on until they let go of it, and counts as long as it does.
        """
        budget = self._settings.memory_budget_bytes
        if budget is None:
            return
        before = self._living_bytes()
        served = (model for versions in self._models.values() for model in versions.values() if model is not None)
        # Not the models themselves, or they would live as long as this list.
        idle = sorted(
            (model.last_used, model.digest, (model.name, model.version))
            for model in (*served, *self._for_tokens.values())
            if model is not needed
        )
        for _, digest, (name, number) in idle:
            if self._living_bytes() <= budget:
                break
            if self._for_tokens.pop(digest, None) is None:
                self._models[name][number] = None
                self._reasons[name, number] = CLOSED
                logger.info("%s:%d is closed to make room", name, number)
        if self._living_bytes() < before:
            give_back_memory()

    def _living_bytes(self) -> int:
        return sum(model.memory_bytes for model in self._living)

    async def _alone(self, work: Callable[[], Coroutine[Any, Any, T]], deadline: float | None) -> T:
        """What ``work`` gives while nobody else changes the table; it goes on for others if its caller gives up.

        Raises:
            DeadlineError: If ``deadline`` passes first.
        """
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            raise _late()
        limit = asyncio.timeout_at(deadline)
        try:
            async with limit:
                await self._lock.acquire()
                task = asyncio.create_task(self._then_unlocked(work))
                self._work.add(task)
                task.add_done_callback(self._work.discard)
                return await asyncio.shield(task)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise _late() from error

    async def _then_unlocked(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await work()
        finally:
            self._lock.release()

    async def _reopen(self, reference: str, version: str | None, refusals: Refusals) -> ServedModel:
        # The words may mean another version than before the wait for the lock.
        name, number = self.resolve(reference, version)
        found = self._ready(name, number)
        if found is None:
            found = await self._open_on_thread(await self._version(Ref(name, number)), refusals)
            self._put(found)
        return found

    def _check_name_is_served(self, name: str, version: int | None) -> None:
        if name not in self._models:
            raise VersionGoneError(
                f"The stream belongs to '{cut(name)}:{version}', and this server serves no version of '{cut(name)}' "
                f"(served models: {_words(self.names())}). Send the state token to a server that does, or begin a new "
                "stream."
            )

    async def _open_for_token(self, digest: str, ref: Ref, refusals: Refusals) -> ServedModel:
        # The name may have been unloaded during the wait for the lock.
        self._check_name_is_served(ref.name, ref.version)
        found = self._by_digest.get(digest)
        if found is None:
            try:
                version = await asyncio.to_thread(self.registry.get, ref)
                if version.digest != digest:
                    raise ModelLoadError(f"the registry has another version under this number, with {version.digest}.")
                self._check_not_failed(version)
                found = await self._open_on_thread(version, refusals)
            except (RegistryError, ModelLoadError, DeviceError) as error:
                raise VersionGoneError(
                    f"The stream belongs to '{cut(ref.name)}:{ref.version}', which this server cannot open: {error} "
                    "Begin a new stream."
                ) from error
        self._keep_for_tokens(found)
        return found

    def _check_not_failed(self, version: Version) -> None:
        until, reason = self._failed.get((version.name, version.version), (0.0, ""))
        if time.monotonic() < until:
            raise ModelLoadError(reason)

    async def _version(self, ref: Ref) -> Version:
        try:
            return await asyncio.to_thread(self.registry.get, ref)
        except UnknownRefError as error:
            raise UnknownModelError(str(error)) from error
        except RegistryError as error:
            raise ModelLoadError(str(error)) from error

    async def _after_trials(self, work: Callable[[Refusals], Awaitable[T]], deadline: float | None = None) -> T:
        """Return what ``work`` gives, which is begun anew after each version that it needs and nobody has tried.

        ``work`` locks the table, trials do not: one may take as long as ``load_timeout_seconds``.

        Args:
            work: Gets the reasons why versions that were tried for it cannot be opened.
            deadline: As in :meth:`find_open`.

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
                    # It goes on for others, and for later requests, if this caller gives up.
                    error = await asyncio.shield(self._trial(version))
            except TimeoutError as timeout:
                raise _late() from timeout
            if isinstance(error, ModelLoadError):
                refusals[version.digest] = error
            elif error is not None:
                raise error

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
                return error
        return None

    def _is_tried(self, version: Version) -> bool:
        """Return whether a version needs no trial; to bound how packages' engines open versions is left to them."""
        return self._settings.engine not in (ONNX, AUTO) or is_known_sound(version, self._settings.threads)

    def _try_out(self, version: Version) -> None:
        """Open a version in a process of its own, which may take a minute.

        Raises:
            ModelLoadError: If it cannot be opened.
            NotReadyError: If the server stops.
        """
        settings = self._settings
        started = time.perf_counter()
        try:
            try_opening(
                version,
                self.registry.root,
                settings.threads,
                settings.load_timeout_seconds,
                settings.load_memory_bytes,
                self._abort,
            )
        except ModelLoadError as error:
            self._note_failure(version, error, started)
            raise

    def _note_failure(self, version: Version, error: ServerError, started: float) -> None:
        self._telemetry.record_load(version.name, version.version, False, time.perf_counter() - started)
        self._reasons[version.name, version.version] = str(error)
        self._failed[version.name, version.version] = (time.monotonic() + RETRY_SECONDS, str(error))

    async def _open_on_thread(self, version: Version, refusals: Refusals) -> ServedModel:
        """Open a version that was tried.

        Raises:
            _UntriedError: If it was not.
            ModelLoadError: If it cannot be served.
            DeviceError, SettingsError: As :meth:`ServedModel.load`.
        """
        if (error := refusals.get(version.digest)) is not None:
            raise error
        if not await asyncio.to_thread(self._is_tried, version):
            raise _UntriedError(version)
        return await asyncio.to_thread(self._opened, version)

    def _opened(self, version: Version) -> ServedModel:
        """Open a version that was tried: its hashes, a warm-up run, and its two graphs against each other.

        Raises:
            ModelLoadError: If it cannot be served, whatever the reason.
            DeviceError, SettingsError: As :meth:`ServedModel.load`.
        """
        started = time.perf_counter()
        try:
            model = self._loaded(version)
        except ServerError as error:
            self._note_failure(version, error, started)
            give_back_memory()
            raise
        self._failed.pop((version.name, version.version), None)
        self._telemetry.record_load(version.name, version.version, True, time.perf_counter() - started)
        return model

    def _loaded(self, version: Version) -> ServedModel:
        try:
            return ServedModel.load(version, self._settings.device, self._settings.threads, self._settings.engine)
        except (ModelLoadError, DeviceError, SettingsError):
            raise
        except Exception as error:
            logger.exception("%s could not be opened", version.ref)
            raise ModelLoadError(
                f"'{version.ref}' cannot be served: opening it failed with {type(error).__name__}: "
                f"{first_line(error)} The server's log says where."
            ) from error

    def _check_one_process(self) -> None:
        if self._settings.workers > 1:
            raise OneProcessError(
                "Several processes share this port, and loading in one of them would leave the others as they are; "
                "move an alias that is served instead, all of them follow it."
            )

    def resolve(self, reference: str, version: str | None = None) -> Key:
        """The name and the number of the version that answers for ``reference``; the arguments are :meth:`find_open`'s.

        Raises:
            InputError: If ``version`` is no number.
            UnknownModelError: If nothing that is served answers to these words.
        """
        ref = _parsed(reference)
        name, alias, number = ref.name, ref.alias, ref.version
        if version is not None:
            try:
                asked = parse_ref(f"{name}:{version}").version
            except RefError as error:
                raise InputError(f"The version of a model is a number from 1, got '{cut(version)}'.") from error
            if number not in (None, asked):
                raise InputError(f"The model '{reference}' and the version {version} contradict each other.")
            number = asked
        if name not in self._models:
            raise UnknownModelError(
                f"Unknown model '{name}'.{did_you_mean(name, self._models)} Served models: {_words(self.names())}."
            )
        candidates = self._models[name]
        if alias is not None:
            found = self._targets.get(ref)
            if found is None:
                found = next((n for n in candidates if alias in self._aliases[name, n]), None)
            if found is None or number not in (None, found):
                wanted = f"alias '{alias}'" if number is None else f"alias '{alias}' at version {number}"
                raise UnknownModelError(f"The model '{name}' has no {wanted} here. {self._open_versions(name)}")
            number = found
        if number is None:
            number = next((target for ref, target in self._targets.items() if ref.name == name), max(candidates))
        if number not in candidates:
            raise UnknownModelError(f"The model '{name}' has no version {number} here. {self._open_versions(name)}")
        return name, number

    def _open_versions(self, name: str) -> str:
        words = (_described(number, self._aliases[name, number]) for number in self.versions(name))
        return f"Served: {_words(words)}."


def give_back_memory() -> None:
    """Hand freed memory to the system: glibc keeps it, and a server that changes models would seem to leak."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def _late() -> DeadlineError:
    return DeadlineError("The deadline passed before the model was open; give more time or retry.")


@functools.lru_cache(1024)
def _parsed(reference: str) -> Ref:
    try:
        return parse_ref(reference)
    except RefError as error:
        raise UnknownModelError(str(error)) from error


def _described(number: int, aliases: Iterable[str]) -> str:
    words = ", ".join(aliases)
    return f"{number} ({words})" if words else str(number)


def _words(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"
