"""The models that a server has open: loading and unloading versions, and following aliases.

:class:`ServedVersions`, without I/O, knows which versions are open and which of them answers for a reference.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from stablernn_registry import Ref, RefError, Registry, RegistryError, UnknownRefError, Version, parse_ref
from stablernn_registry.errors import did_you_mean
from stablernn_runtime.served_model import ServedModel
from stablernn_server.errors import (
    DeviceError,
    InputError,
    ModelLoadError,
    NotReadyError,
    OneProcessError,
    ServerError,
    UnknownModelError,
    VersionGoneError,
    cut,
)
from stablernn_server.observability.telemetry import Telemetry
from stablernn_server.settings import Settings
from stablernn_server.version_loader import (
    MemoryBudget,
    Refusals,
    TokenModels,
    VersionKey,
    VersionLoader,
    deadline_error,
    trim_memory,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
LOADED = "load"
"""Purpose of a version that was loaded by hand."""
CLOSED = "closed to make room; it is opened again when it is asked for"
"""The reason why a version that is served is not open."""


def resolve_version(
    reference: str,
    version: str | None,
    served: Mapping[str, Collection[int]],
    targets: Mapping[Ref, int],
    aliases: Mapping[VersionKey, tuple[str, ...]],
) -> VersionKey:
    """Return the name and the number of the version that answers for ``reference``.

    Without a version, a name answers with the version that was asked for by alias (the first, if several were), else
    with its highest one.

    Args:
        reference: ``NAME``, ``NAME@ALIAS`` or ``NAME:VERSION``.
        version: A number as text, from the path of the request.
        served: The numbers of the served versions, by name.
        targets: Numbers that the aliases which the server follows point at.
        aliases: All aliases of the served versions.

    Raises:
        InputError: If ``version`` is no number, or contradicts the reference.
        UnknownModelError: If nothing that is served answers for them.
    """
    ref = parse_reference(reference)
    name, alias, number = ref.name, ref.alias, ref.version
    if version is not None:
        try:
            path_number = parse_ref(f"{name}:{version}").version
        except RefError as error:
            raise InputError(f"The version of a model is a number from 1, got '{cut(version)}'.") from error
        if number not in (None, path_number):
            raise InputError(f"The model '{reference}' and the version {version} contradict each other.")
        number = path_number
    if name not in served:
        raise UnknownModelError(
            f"Unknown model '{name}'.{did_you_mean(name, served)} Served models: {format_names(sorted(served))}."
        )
    candidates = served[name]
    if alias is not None:
        target = targets.get(ref)
        if target is None:
            # An alias that is not followed answers as well, while a version that it points at is served.
            target = next((candidate for candidate in candidates if alias in aliases[name, candidate]), None)
        if target is None or number not in (None, target):
            description = f"alias '{alias}'" if number is None else f"alias '{alias}' at version {number}"
            raise UnknownModelError(
                f"The model '{name}' has no {description} here. {_list_versions(name, candidates, aliases)}"
            )
        number = target
    if number is None:
        # The first alias of the name that is followed, else the highest version.
        number = next((target for ref, target in targets.items() if ref.name == name), max(candidates))
    if number not in candidates:
        raise UnknownModelError(
            f"The model '{name}' has no version {number} here. {_list_versions(name, candidates, aliases)}"
        )
    return name, number


# Requests repeat a few references.
@functools.lru_cache(1024)
def parse_reference(reference: str) -> Ref:
    """Return a parsed reference.

    Raises:
        UnknownModelError: If it is none.
    """
    try:
        return parse_ref(reference)
    except RefError as error:
        raise UnknownModelError(str(error)) from error


def format_names(names: Iterable[str]) -> str:
    """Return names as a list for errors; ``none`` if there are none."""
    return ", ".join(names) or "none"


def _list_versions(name: str, numbers: Iterable[int], aliases: Mapping[VersionKey, tuple[str, ...]]) -> str:
    versions = (_describe_version(number, aliases[name, number]) for number in sorted(numbers))
    return f"Served: {format_names(versions)}."


def _describe_version(number: int, aliases: Iterable[str]) -> str:
    names = ", ".join(aliases)
    return f"{number} ({names})" if names else str(number)


class ServedVersions:
    """Open models by name and version, and those that only state tokens use.

    Versions that are closed to make room are served all the same; they have to be opened for the next request.
    """

    def __init__(self, memory_budget_bytes: int | None, token_ttl_seconds: float) -> None:
        """Begin with none.

        Args:
            memory_budget_bytes: Limit of the memory of all open models; None for none.
            token_ttl_seconds: Seconds after which no state token of a stream can be valid any more.
        """
        # None: served, but closed to make room.
        self._models: dict[str, dict[int, ServedModel | None]] = {}
        self._digests: dict[VersionKey, str] = {}
        # Why a version is served: references of the settings, and "load" for those that were loaded by hand.
        self._purposes: dict[VersionKey, set[str]] = {}
        # The aliases that are followed, and the versions that they point at.
        self._targets: dict[Ref, int] = {}
        self._aliases: dict[VersionKey, tuple[str, ...]] = {}
        # Why a version is not open, for the index.
        self._reasons: dict[VersionKey, str] = {}
        # Models that live, held here, by sessions, WebSockets or requests.
        self._by_digest: WeakValueDictionary[str, ServedModel] = WeakValueDictionary()
        self._budget = MemoryBudget(memory_budget_bytes)
        self._token_models = TokenModels()
        self._token_ttl_seconds = token_ttl_seconds

    def get(self, name: str, version: int) -> ServedModel | None:
        """Return the model of a version that is served; None where it would have to be opened."""
        model = self._models.get(name, {}).get(version)
        return model or self._by_digest.get(self._digests.get((name, version), ""))

    def names(self) -> list[str]:
        """Return the names of the served models, sorted."""
        return sorted(self._models)

    def keys(self) -> list[VersionKey]:
        """Return name and number of every served version, those included that are closed to make room."""
        return [(name, number) for name in self.names() for number in self.versions(name)]

    def served_refs(self) -> list[str]:
        """Return ``NAME:VERSION`` of :meth:`keys`."""
        return [f"{name}:{number}" for name, number in self.keys()]

    def versions(self, name: str) -> list[int]:
        """Return the numbers of the served versions of a name, those included that are closed to make room."""
        return sorted(self._models.get(name, {}))

    def resolve(self, reference: str, version: str | None = None) -> VersionKey:
        """Return the name and the number of the version that answers for ``reference``.

        Args:
            reference: As in :meth:`find_open`.
            version: Likewise.

        Raises:
            InputError: If ``version`` is no number, or contradicts the reference.
            UnknownModelError: If nothing that is served answers for them.
        """
        return resolve_version(reference, version, self._models, self._targets, self._aliases)

    def close_unused(self) -> None:
        """Close the models that only state tokens use and that no token can continue any more, since all expired."""
        if self._token_models.close_unused(time.monotonic() - self._token_ttl_seconds):
            trim_memory()

    def _set_aliases(self, name: str, number: int, aliases: tuple[str, ...]) -> None:
        self._aliases[name, number] = aliases
        model = self.get(name, number)
        if model is not None:
            model.aliases = aliases

    def _serve(self, model: ServedModel, purpose: str) -> None:
        """Let ``model`` answer from now on; an earlier one of the same version ends with its last request."""
        key = (model.name, model.version)
        self._purposes.setdefault(key, set()).add(purpose)
        self._aliases[key] = model.aliases
        self._put(model)

    def _put(self, model: ServedModel) -> None:
        key = (model.name, model.version)
        self._models.setdefault(model.name, {})[model.version] = model
        self._digests[key] = model.digest
        model.aliases = self._aliases[key]
        self._token_models.discard(model.digest)
        self._reasons.pop(key, None)
        self._enter(model)

    def _enter(self, model: ServedModel) -> None:
        self._budget.add(model)
        self._by_digest[model.digest] = model
        model.last_requested = time.monotonic()
        # An iterator: a list would keep the models alive.
        served = (m for versions in self._models.values() for m in versions.values() if m is not None)
        self._budget.make_room(model, served, self._token_models, self._close)

    def _close(self, name: str, number: int) -> None:
        self._models[name][number] = None
        self._reasons[name, number] = CLOSED

    def get_for_request(self, name: str, number: int) -> ServedModel | None:
        """Return the model of a version that :meth:`resolve` named, marked as used now; None if it must be opened."""
        model = self.get(name, number)
        if model is not None:
            model.last_requested = time.monotonic()
            # It was closed to make room, but something holds it still.
            if self._models[name][number] is None:
                self._put(model)
        return model

    def _retain_for_tokens(self, model: ServedModel) -> None:
        if self._digests.get((model.name, model.version)) == model.digest:
            # The version is served: if it was closed to make room, it is open again.
            if self.get_for_request(model.name, model.version) is None:
                self._put(model)
            return
        is_new = self._token_models.add(model)
        model.last_requested = time.monotonic()
        if is_new:
            self._enter(model)

    def _move_alias(self, ref: Ref, number: int) -> None:
        """Let an alias answer with another version; the one before goes unless it is served for something else."""
        before = self._targets.get(ref)
        self._targets[ref] = number
        if before is not None and before != number:
            purposes = self._purposes.get((ref.name, before), set())
            purposes.discard(str(ref))
            if not purposes:
                self._drop(ref.name, before, f"the alias '{ref.alias}' has moved on to version {number}")
                trim_memory()

    def _drop(self, name: str, number: int, reason: str) -> None:
        self._models[name].pop(number, None)
        for table in (self._purposes, self._aliases, self._digests):
            table.pop((name, number), None)
        self._reasons[name, number] = reason
        if not self._models[name]:
            del self._models[name]


class ModelRepository(ServedVersions):
    """The served versions of a registry, which are opened, closed and moved here.

    A version that was closed to make room is opened again when it is asked for, unless a session or a request still
    holds its model, which then answers. Changes happen on the event loop, one at a time under a lock.

    Attributes:
        registry: The registry that versions come from.
        on_move: Called when an alias has moved, on the event loop; None for nobody.
    """

    def __init__(self, settings: Settings, telemetry: Telemetry) -> None:
        super().__init__(settings.memory_budget_bytes, settings.token_ttl_seconds)
        self.registry = Registry(settings.registry)
        self.on_move: Callable[[], None] | None = None
        self._settings = settings
        self._telemetry = telemetry
        self._loader = VersionLoader(settings, telemetry, self.registry.root, self._reasons)
        # Failures of aliases and models that last, which are logged once.
        self._last_logged: dict[Ref | str, str] = {}
        # Held while versions come, go or are opened. Trials in other processes do not hold it.
        self._lock = asyncio.Lock()
        # The event loop itself keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    def open(
        cls, settings: Settings, telemetry: Telemetry, answering: Mapping[str, int] | None = None
    ) -> ModelRepository:
        """Open everything that the settings name.

        Args:
            settings: Settings of the server.
            telemetry: Counts loads.
            answering: From :meth:`answering` of the other processes of a server, which this one joins: names answer
                with the same version, and so do aliases whose version cannot be served.

        Raises:
            ModelLoadError: If a version cannot be served, or there is none to serve.
            DeviceError: If the device that was asked for is not there.
            stablernn_registry.RegistryError: If a reference names nothing, or the registry cannot be read.
        """
        repository = cls(settings, telemetry)
        registry = repository.registry
        answering = answering or {}
        references = settings.models or tuple(answering) or tuple(entry.name for entry in registry.list())
        if not references:
            raise ModelLoadError(f"The registry {registry.root} holds no models; publish one with 'stablernn export'.")
        for reference in references:
            ref = parse_ref(reference)
            model = repository._open_first(ref, answering.get(reference))
            repository._serve(model, reference)
            if ref.alias is not None:
                repository._targets[ref] = model.version
        return repository

    def _open_first(self, ref: Ref, answering: int | None) -> ServedModel:
        """Open the version of a reference, or the one that other processes answer it with."""
        pinned = None if answering is None else Ref(ref.name, answering)
        try:
            return self._get_or_open(self.registry.get(ref if ref.alias is not None or pinned is None else pinned))
        except (RegistryError, ModelLoadError) as error:
            if ref.alias is None or pinned is None:
                raise
            model = self._get_or_open(self.registry.get(pinned))
            self._log_stale(ref, pinned.version, error)
            return model

    def _get_or_open(self, version: Version) -> ServedModel:
        return self.get(version.name, version.version) or self._loader.try_and_open(version)

    def answering(self) -> dict[str, int]:
        """Return the numbers of the versions that answer for what the settings name."""
        return {
            reference: number
            for (_, number), references in self._purposes.items()
            for reference in references
            if reference != LOADED
        }

    def stale_aliases(self, name: str, number: int) -> list[str]:
        """Return the aliases that a version answers for although they point to another one, which cannot be served."""
        return sorted(
            ref.alias or ""
            for ref, target in self._targets.items()
            if (ref.name, target) == (name, number) and ref in self._last_logged
        )

    async def find_open(self, reference: str, version: str | None = None, deadline: float | None = None) -> ServedModel:
        """Return the model that answers for ``reference``, opened again if it was closed to make room.

        Args:
            reference: ``NAME``, ``NAME@ALIAS`` or ``NAME:VERSION``.
            version: A number as text, from the path of the request.
            deadline: Until when to wait for one that has to be opened, on the clock of the event loop.

        Raises:
            InputError: If ``version`` is no number, or contradicts the reference.
            UnknownModelError: If nothing that is served answers for them.
            ModelLoadError: If the version was closed, and cannot be opened again.
            DeadlineError: If it is not open in time.
        """
        model = self.get_for_request(*self.resolve(reference, version))
        if model is None:
            model = await self._run_in_task(lambda refusals: self._reopen(reference, version, refusals), deadline)
        return model

    async def find_by_digest(self, digest: str, name: str, version: int, deadline: float | None = None) -> ServedModel:
        """Return the model of a stream that a client brings in a state token.

        Any version of a served name can be opened, wherever its aliases point. A version of another name cannot: a
        server that is restricted to some models opens no others.

        Args:
            digest: Digest of the version.
            name: Name of the model.
            version: Number of the version.
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
            return await self._run_in_task(lambda refusals: self._open_for_token(digest, ref, refusals), deadline)
        self._retain_for_tokens(model)
        return model

    async def find_for_streams(self, reference: str, deadline: float | None = None) -> ServedModel | Version:
        """Return the model that answers for ``reference``, or a version that is not served but may have streams.

        The latter is named by its number and is not opened here: streams may go on with it from state tokens.

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
            ref = parse_reference(reference)
            if ref.version is None or ref.name not in self._models:
                raise
            try:
                return await asyncio.to_thread(self.registry.get, ref)
            except RegistryError:
                # The first error lists what is served.
                raise error from None

    def start_trials(self) -> None:
        """Let versions be opened in separate processes, also after :meth:`stop_trials`."""
        self._loader.start_trials()

    def stop_trials(self) -> None:
        """End the processes in which versions are opened for the first time, and start no more: the server stops."""
        self._loader.stop_trials()

    async def load(self, reference: str) -> ServedModel:
        """Open a version of the registry, again if it is open, and serve it; until then, the open one answers.

        Args:
            reference: As on the command line; a bare name is that of the alias by which it is served, or was at start,
                else the highest version.

        Raises:
            UnknownModelError: If the registry has no such version.
            ModelLoadError: If it cannot be served; what was served before still is.
            OneProcessError: If other processes share the port.
        """
        self._check_one_process()
        ref = parse_reference(reference)
        if ref.alias is None and ref.version is None:
            followed = (*self._targets, *map(parse_ref, self._settings.models))
            ref = next((each for each in followed if each.name == ref.name and each.alias is not None), ref)
        return await self._loader.run_with_trials(lambda refusals: self._load(ref, refusals))

    async def _load(self, ref: Ref, refusals: Refusals) -> ServedModel:
        async with self._lock:
            model = await self._loader.open(await self._read_version(ref), refusals)
            self._serve(model, LOADED if ref.alias is None else str(ref))
            if ref.alias is not None:
                self._move_alias(ref, model.version)
        return model

    async def unload(self, reference: str) -> None:
        """Stop serving a version, or all versions of a name. Requests in flight and sessions continue with it.

        Raises:
            UnknownModelError: If it is neither served nor in the registry.
            OneProcessError: If other processes share the port.
        """
        self._check_one_process()
        ref = parse_reference(reference)
        async with self._lock:
            numbers = self.versions(ref.name)
            try:
                if ref != Ref(ref.name) or not numbers:
                    numbers = [self.resolve(reference, None)[1]]
            except UnknownModelError:
                # It is not served, which is what was asked for; a name that the registry does not know is an error.
                await self._read_version(ref)
                return
            for number in numbers:
                self._drop(ref.name, number, "unloaded on request")
            for target, number in list(self._targets.items()):
                if target.name == ref.name and number in numbers:
                    del self._targets[target]
                    self._end_stale(target)
            if ref.name not in self._models:
                self._last_logged.pop(ref.name, None)
        trim_memory()

    async def follow_aliases(self) -> None:
        """Serve the versions that the aliases point at now.

        If one cannot be opened, that is logged, and the version from before answers.
        """
        for ref in list(self._targets):
            try:
                await self._loader.run_with_trials(functools.partial(self._follow_alias, ref))
            except NotReadyError:
                # The server is shutting down.
                return
            except Exception as error:
                # Whatever it is, the other aliases are followed all the same.
                self._log_stale(ref, self._targets.get(ref), error)
            else:
                self._end_stale(ref)
        async with self._lock:
            names = self.names()
            # All are read before one is applied: an alias that moves from one version to another is never at neither.
            read = await asyncio.to_thread(lambda: [self._read_aliases(name) for name in names])
            for name, targets in zip(names, read, strict=True):
                if isinstance(targets, Exception):
                    self._log_once(name, f"{name}: its aliases cannot be read: ", targets)
                    continue
                self._last_logged.pop(name, None)
                for number in self.versions(name):
                    self._set_aliases(name, number, tuple(a for a, target in targets.items() if target == number))

    async def _follow_alias(self, ref: Ref, refusals: Refusals) -> None:
        async with self._lock:
            served = self._targets.get(ref)
            if served is None:
                # It was unloaded while this waited for the lock.
                return
            # Mostly the alias has not moved; to see that takes the log only, which the registry keeps in memory.
            number = await asyncio.to_thread(self.registry.resolve, ref)
            if number == served:
                return
            version = await asyncio.to_thread(self.registry.get, Ref(ref.name, number))
            model = self._by_digest.get(version.digest)
            if model is None:
                self._loader.check_not_failed(version)
                model = await self._loader.open(version, refusals)
            model.aliases = tuple(version.aliases)
            self._serve(model, str(ref))
            self._move_alias(ref, version.version)
            logger.info("%s now answers with version %d", ref, version.version)
            if self.on_move is not None:
                self.on_move()

    def _read_aliases(self, name: str) -> dict[str, int] | Exception:
        """Return where the aliases of a model point, all at one time; or the error if that cannot be read."""
        try:
            return self.registry.aliases(name)
        except Exception as error:
            return error

    def _log_stale(self, ref: Ref, number: int | None, error: Exception) -> None:
        """Note that an alias is answered by another version than the one it points to, since that has failed."""
        self._log_once(ref, f"{ref} is still answered by version {number}: ", error)
        self._telemetry.set_stale_alias(ref.name, ref.alias or "", is_stale=True)

    def _end_stale(self, ref: Ref) -> None:
        """Note that an alias is answered by the version it points to, or not at all."""
        if self._last_logged.pop(ref, None) is not None:
            self._telemetry.set_stale_alias(ref.name, ref.alias or "", is_stale=False)

    def _log_once(self, subject: Ref | str, prefix: str, error: Exception) -> None:
        """Log a failure when it begins, not again as long as it lasts."""
        is_expected = isinstance(error, RegistryError | ServerError)
        message = prefix + (str(error) if is_expected else f"{type(error).__name__}: {error}")
        if self._last_logged.get(subject) != message:
            self._last_logged[subject] = message
            logger.error("%s", message, exc_info=None if is_expected else error)

    async def index(self) -> list[dict[str, str]]:
        """Return every version of the registry and whether it is served, in the form of Triton's repository index.

        Raises:
            ModelLoadError: If the registry cannot be read.
        """
        try:
            entries = await asyncio.to_thread(self.registry.list)
        except RegistryError as error:
            raise ModelLoadError(str(error)) from error
        rows = []
        for entry in entries:
            for number in entry.versions:
                is_open = self.get(entry.name, number) is not None
                reason = "" if is_open else self._reasons.get((entry.name, number), "not loaded")
                rows.append(
                    {
                        "name": entry.name,
                        "version": str(number),
                        "state": "READY" if is_open or reason == CLOSED else "UNAVAILABLE",
                        "reason": reason,
                    }
                )
        return rows

    def _run_in_task(
        self, work: Callable[[Refusals], Coroutine[Any, Any, T]], deadline: float | None
    ) -> asyncio.Task[T]:
        """Run ``work`` under the lock, in a task: the caller may be a coroutine without one, and timeouts need it."""
        return asyncio.create_task(
            self._loader.run_with_trials(
                lambda refusals: self._run_locked(lambda: work(refusals), deadline),
                deadline,
            )
        )

    async def _run_locked(self, work: Callable[[], Coroutine[Any, Any, T]], deadline: float | None) -> T:
        """Return the result of ``work`` under the lock; if its caller gives up, it goes on for others.

        Raises:
            DeadlineError: If ``deadline`` passes first.
        """
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            raise deadline_error()
        limit = asyncio.timeout_at(deadline)
        try:
            async with limit:
                await self._lock.acquire()
                # The task releases the lock, whether or not this caller is still there.
                task = asyncio.create_task(self._run_and_unlock(work))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return await asyncio.shield(task)
        except TimeoutError as error:
            # Not an error of the work itself.
            if not limit.expired():
                raise
            raise deadline_error() from error

    async def _run_and_unlock(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await work()
        finally:
            self._lock.release()

    async def _reopen(self, reference: str, version: str | None, refusals: Refusals) -> ServedModel:
        # The reference may mean another version than before the wait for the lock.
        name, number = self.resolve(reference, version)
        model = self.get_for_request(name, number)
        if model is None:
            model = await self._loader.open(await self._read_version(Ref(name, number)), refusals)
            self._put(model)
        return model

    def _check_name_is_served(self, name: str, version: int | None) -> None:
        if name not in self._models:
            raise VersionGoneError(
                f"The stream belongs to '{cut(name)}:{version}', and this server serves no version of '{cut(name)}' "
                f"(served models: {format_names(self.names())}). Send the state token to a server that does, or begin "
                "a new stream."
            )

    async def _open_for_token(self, digest: str, ref: Ref, refusals: Refusals) -> ServedModel:
        # The name may have been unloaded during the wait for the lock.
        self._check_name_is_served(ref.name, ref.version)
        model = self._by_digest.get(digest)
        if model is None:
            try:
                version = await asyncio.to_thread(self.registry.get, ref)
                if version.digest != digest:
                    raise ModelLoadError(f"the registry has another version under this number, with {version.digest}.")
                self._loader.check_not_failed(version)
                model = await self._loader.open(version, refusals)
            except (RegistryError, ModelLoadError, DeviceError) as error:
                raise VersionGoneError(
                    f"The stream belongs to '{cut(ref.name)}:{ref.version}', which this server cannot open: {error} "
                    "Begin a new stream."
                ) from error
        self._retain_for_tokens(model)
        return model

    async def _read_version(self, ref: Ref) -> Version:
        try:
            return await asyncio.to_thread(self.registry.get, ref)
        except UnknownRefError as error:
            raise UnknownModelError(str(error)) from error
        except RegistryError as error:
            raise ModelLoadError(str(error)) from error

    def _check_one_process(self) -> None:
        if self._settings.workers > 1:
            raise OneProcessError(
                "Several processes share this port, and loading in one of them would leave the others as they are; "
                "move an alias that is served instead, all of them follow it."
            )
