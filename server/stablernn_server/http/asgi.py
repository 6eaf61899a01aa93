"""The types of ASGI: scopes, messages, the functions that pass messages, and applications."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]
ASGIApplication = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
