"""The types of ASGI: scopes, messages, the functions that pass messages, and applications."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_FIELDS_KEY = "stablernn.fields"
Headers = tuple[tuple[bytes, bytes], ...]
ASGIApplication = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


def header_fields(scope: Scope) -> Mapping[bytes, bytes]:
    """Return the header fields of a request by their names in lower case; of several with one name, the first."""
    fields: Mapping[bytes, bytes] | None = scope.get(_FIELDS_KEY)
    if fields is None:
        fields = scope[_FIELDS_KEY] = dict(reversed(scope["headers"]))
    return fields
