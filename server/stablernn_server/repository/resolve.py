"""Resolves the reference of a request, such as ``NAME@ALIAS``, to the version that answers for it."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping

from stablernn_registry import Ref, RefError, parse_ref
from stablernn_registry.errors import did_you_mean
from stablernn_server.errors import InputError, UnknownModelError, cut

Key = tuple[str, int]
"""Name and number of a version."""


def resolve_version(
    reference: str,
    version: str | None,
    served: Mapping[str, Collection[int]],
    targets: Mapping[Ref, int],
    aliases: Mapping[Key, tuple[str, ...]],
) -> Key:
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


def _list_versions(name: str, numbers: Iterable[int], aliases: Mapping[Key, tuple[str, ...]]) -> str:
    versions = (_describe_version(number, aliases[name, number]) for number in sorted(numbers))
    return f"Served: {format_names(versions)}."


def _describe_version(number: int, aliases: Iterable[str]) -> str:
    names = ", ".join(aliases)
    return f"{number} ({names})" if names else str(number)
