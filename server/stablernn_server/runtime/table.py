"""The models that a server has open, how a request's words find one, and how versions come and go."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from weakref import WeakValueDictionary

from stablernn_registry import Ref, RefError, Registry, RegistryError, UnknownRefError, Version, parse_ref
from stablernn_registry.errors import near
from stablernn_server.errors import (
    DeviceError,
    InputError,
    ModelLoadError,
    OneProcessError,
    UnknownModelError,
    VersionGoneError,
    cut,
)
from stablernn_server.runtime.onnx_model import OnnxModel
from stablernn_server.settings import Settings
from stablernn_server.telemetry import Telemetry

logger = logging.getLogger(__name__)

Key = tuple[str, int]
RETRY_SECONDS = 60.0
"""After which a version that could not be opened is tried again for an alias that points at it."""
KEPT_FOR_TOKENS = 2
"""Versions that are no longer served, and are kept open because tokens of their streams still come."""


class ModelTable:
    """Open models by name and version.

    Without a version, a name answers with the version that was asked for by alias (the first, if several were), else
    with its highest one. A version that was closed to make room is opened again when it is asked for.

    Attributes:
        registry: Where versions come from.
    """

    def __init__(self, settings: Settings, telemetry: Telemetry) -> None:
        self.registry = Registry(settings.registry)
        self._settings = settings
        self._telemetry = telemetry
        # None: served, but closed to make room.
        self._models: dict[str, dict[int, OnnxModel | None]] = {}
        # What a version is served for: references of the settings, and "load" for those that were loaded by hand.
        self._wanted: dict[Key, set[str]] = {}
        self._targets: dict[Ref, int] = {}
        self._reasons: dict[Key, str] = {}
        self._failed: dict[Key, float] = {}
        self._used: dict[Key, float] = {}
        self._aliases: dict[Key, tuple[str, ...]] = {}
        self._said: dict[Ref | str, str] = {}
        self._by_digest: WeakValueDictionary[str, OnnxModel] = WeakValueDictionary()
        self._for_tokens: dict[str, OnnxModel] = {}
        self._lock = asyncio.Lock()

    @classmethod
    def open(cls, settings: Settings, telemetry: Telemetry) -> ModelTable:
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
            model = table.get(version.name, version.version) or table._opened(version)
            table._serve(model, reference)
            if ref.alias is not None:
                table._targets[ref] = version.version
        return table

    def get(self, name: str, version: int) -> OnnxModel | None:
        return self._models.get(name, {}).get(version)

    def __iter__(self) -> Iterator[OnnxModel]:
        """Every open model, by name and version."""
        for name in sorted(self._models):
            for version in sorted(self._models[name]):
                if (model := self._models[name][version]) is not None:
                    yield model

    def names(self) -> list[str]:
        return sorted(self._models)

    def served(self) -> list[str]:
        """``NAME:VERSION`` of everything that answers, what is closed to make room included."""
        return [f"{name}:{number}" for name in self.names() for number in self.versions(name)]

    def versions(self, name: str) -> list[int]:
        """Numbers of the versions that are served under a name, those included that are closed to make room."""
        return sorted(self._models.get(name, {}))

    async def find_open(self, reference: str, version: str | None = None) -> OnnxModel:
        """The model that answers for ``reference``, opened again where it was closed to make room.

        Args:
            reference: ``NAME``, ``NAME@ALIAS`` or ``NAME:VERSION``.
            version: A number as text, from the path of the request.

        Raises:
            InputError: If ``version`` is no number.
            UnknownModelError: If nothing that is served answers to these words.
            ModelLoadError: If it was closed, and cannot be opened again.
        """
        name, number = self.resolve(reference, version)
        self._used[name, number] = time.monotonic()
        return self._models[name][number] or await self._reopen(name, number)

    async def by_digest(self, digest: str, name: str, version: int) -> OnnxModel:
        """The model of a stream that a client brings with it: any version of the registry, served or not.

        Raises:
            VersionGoneError: If the registry has it no more, or it cannot be opened.
        """
        found = self._by_digest.get(digest)
        if found is not None:
            return found
        async with self._lock:
            found = self._by_digest.get(digest)
            if found is not None:
                return found
            try:
                entry = await asyncio.to_thread(self.registry.get, Ref(name, version))
                if entry.digest != digest:
                    raise ModelLoadError(f"'{entry.ref}' is another model now")
                found = await asyncio.to_thread(self._opened, entry)
            except (RegistryError, ModelLoadError, DeviceError) as error:
                raise VersionGoneError(
                    f"The stream belongs to '{cut(name)}:{version}', which this server cannot open: {error} Begin a "
                    "new stream."
                ) from error
            self._for_tokens[digest] = found
            while len(self._for_tokens) > KEPT_FOR_TOKENS:
                del self._for_tokens[next(iter(self._for_tokens))]
        return found

    async def load(self, reference: str) -> OnnxModel:
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
        async with self._lock:
            model = await self._open_on_thread(await self._version(ref))
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
                await self._follow(ref)
            except (RegistryError, ModelLoadError, DeviceError) as error:
                self._say_once(ref, f"{ref} is still answered by version {self._targets.get(ref)}: {error}")
            else:
                self._said.pop(ref, None)
        for name in self.names():
            for number in self.versions(name):
                try:
                    version = await asyncio.to_thread(self.registry.get, Ref(name, number))
                except RegistryError as error:
                    self._say_once(f"{name}:{number}", f"{name}:{number}: its aliases cannot be read: {error}")
                else:
                    self._said.pop(f"{name}:{number}", None)
                    self._name(name, number, tuple(version.aliases))

    async def _follow(self, ref: Ref) -> None:
        async with self._lock:
            served = self._targets.get(ref)
            if served is None:
                # It was unloaded meanwhile.
                return
            version = await asyncio.to_thread(self.registry.get, ref)
            key = (version.name, version.version)
            if version.version == served:
                return
            model = self.get(*key)
            if model is None:
                if time.monotonic() < self._failed.get(key, 0.0):
                    raise ModelLoadError(self._reasons[key])
                model = await self._open_on_thread(version)
            self._serve(model, str(ref))
            self._move(ref, version.version)
            logger.info("%s now answers with version %d", ref, version.version)

    def _say_once(self, about: Ref | str, sentence: str) -> None:
        """Log a failure that lasts when it begins, not at each look."""
        if self._said.get(about) != sentence:
            self._said[about] = sentence
            logger.error("%s", sentence)

    def _name(self, name: str, number: int, aliases: tuple[str, ...]) -> None:
        if number in self._models.get(name, {}):
            self._aliases[name, number] = aliases
        model = self.get(name, number)
        if model is not None:
            model.aliases = aliases

    def index(self) -> list[dict[str, str]]:
        """Every version of the registry and whether it is served, as Triton's repository index says it.

        Raises:
            ModelLoadError: If the registry cannot be read.
        """
        found = []
        try:
            entries = self.registry.list()
        except RegistryError as error:
            raise ModelLoadError(str(error)) from error
        for entry in entries:
            for number in entry.versions:
                is_open = self.get(entry.name, number) is not None
                reason = "" if is_open else self._reasons.get((entry.name, number), "not loaded")
                found.append(
                    {
                        "name": entry.name,
                        "version": str(number),
                        "state": "READY" if is_open else "UNAVAILABLE",
                        "reason": reason,
                    }
                )
        return found

    def _serve(self, model: OnnxModel, wanted_for: str) -> None:
        """Let ``model`` answer from now on; one of the same version that did so drains by itself."""
        self._wanted.setdefault((model.name, model.version), set()).add(wanted_for)
        self._put(model)

    def _put(self, model: OnnxModel) -> None:
        key = (model.name, model.version)
        self._models.setdefault(model.name, {})[model.version] = model
        self._aliases[key] = model.aliases
        self._by_digest[model.digest] = model
        self._for_tokens.pop(model.digest, None)
        self._used[key] = time.monotonic()
        self._reasons.pop(key, None)
        self._make_room(key)

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
        for kept in (self._wanted, self._aliases, self._used):
            kept.pop((name, number), None)
        self._said.pop(f"{name}:{number}", None)
        self._reasons[name, number] = reason
        if not self._models[name]:
            del self._models[name]

    def _make_room(self, needed: Key) -> None:
        """Close versions that were not used for longest until the rest fits the memory budget; ``needed`` stays."""
        budget = self._settings.memory_budget_bytes
        if budget is None:
            return
        held = {(model.name, model.version): model.memory_bytes for model in self}
        for key in sorted(held, key=lambda key: self._used.get(key, 0.0)):
            if sum(held.values()) <= budget:
                return
            if key != needed:
                del held[key]
                self._models[key[0]][key[1]] = None
                self._reasons[key] = "closed to make room; it is opened again when it is asked for"
                logger.info("%s:%d is closed to make room", *key)
        give_back_memory()

    async def _reopen(self, name: str, number: int) -> OnnxModel:
        async with self._lock:
            found = self.get(name, number)
            if found is None:
                if number not in self._models.get(name, {}):
                    raise UnknownModelError(f"The model '{name}' with version {number} was unloaded on request.")
                found = await self._open_on_thread(await self._version(Ref(name, number)))
                self._put(found)
        return found

    async def _version(self, ref: Ref) -> Version:
        try:
            return await asyncio.to_thread(self.registry.get, ref)
        except UnknownRefError as error:
            raise UnknownModelError(str(error)) from error
        except RegistryError as error:
            raise ModelLoadError(str(error)) from error

    async def _open_on_thread(self, version: Version) -> OnnxModel:
        return await asyncio.to_thread(self._opened, version)

    def _opened(self, version: Version) -> OnnxModel:
        """Open a version: its hashes, a warm-up run, and its two graphs against each other."""
        started = time.perf_counter()
        try:
            model = OnnxModel.load(version, self._settings.device, self._settings.threads, self._settings.engine)
        except (ModelLoadError, DeviceError) as error:
            self._telemetry.loaded(version.name, version.version, False, time.perf_counter() - started)
            self._reasons[version.name, version.version] = str(error)
            self._failed[version.name, version.version] = time.monotonic() + RETRY_SECONDS
            give_back_memory()
            raise
        self._failed.pop((version.name, version.version), None)
        self._telemetry.loaded(version.name, version.version, True, time.perf_counter() - started)
        return model

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
                f"Unknown model '{name}'.{near(name, self._models)} Served models: {_words(self.names())}."
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
