"""The versions that a server serves: which are open, and which of them answers for a reference. No I/O."""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Iterable, Mapping
from weakref import WeakValueDictionary

from stablernn_registry import Ref, RefError, parse_ref
from stablernn_registry.errors import did_you_mean
from stablernn_runtime.served_model import ServedModel
from stablernn_server.errors import InputError, UnknownModelError, cut
from stablernn_server.repository.eviction import MemoryBudget, TokenModels, VersionKey, trim_memory

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
