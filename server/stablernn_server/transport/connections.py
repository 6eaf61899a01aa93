"""The open connections of one server process, and their limits.

A connection costs a client nothing and the server a file descriptor. So idle connections make room for others: the one
that has been idle longest is closed when its address, or the whole process, has too many. Connections with more
requests than the one in flight take turns.
"""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from stablernn_server.errors import BusyError

MAX_FILES = 11_000
"""Open files that a process asks the system for unless a setting needs more; many systems begin with 1,024."""
CONNECTION_SHARE = 0.8
"""Share of the open files that connections may take. The rest is for models, the registry, and connections that are
refused."""
ADDRESS_SHARE = 0.25
"""Share of the connections that one address may keep open."""
REFUSED_SHARE = 0.05
"""Connections beyond the limit that may stay open until they have read the refusal, as a share of the limit."""
MAX_SKIPPED_TURNS = 8
"""Connections that are accepted before the next request of the others begins."""
OPEN_FILES_WITHOUT_LIMIT = 10_000
"""Assumed where the system does not say how many files a process may open (Windows)."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Turn(Enum):
    """Work that a connection waits for, the most urgent first."""

    HANDSHAKE = 0
    FIRST_REQUEST = 1
    NEXT = 2


class Connection(Protocol):
    """A connection, as far as the table needs to know it."""

    def close_idle(self) -> None:
        """Close the connection, on which no request is in flight."""

    def end_stalled(self, now: float, seconds: float) -> None:
        """Abort the connection if nothing of its output has been taken for ``seconds``.

        Args:
            now: The time, on the clock of the event loop; to be called again and again.
            seconds: How long output may wait.
        """


@dataclass(slots=True)
class _Peer:
    """The connections of one address, and the requests that proxies forward for it."""

    key: str
    limit: int | None
    open: int = 0
    requests: int = 0
    idle: OrderedDict[Connection, None] = field(default_factory=OrderedDict)


class ConnectionTable:
    """Open connections by address, the idle ones in the order in which they became idle. For the event loop alone.

    Attributes:
        limit: Connections in all.
        per_address: Connections from one address, or requests in flight that proxies forward for it.
    """

    def __init__(self, limit: int, per_address: int, exempt: Iterable[str] = ()) -> None:
        """Create an empty table.

        Args:
            limit: Connections in all.
            per_address: Connections from one address.
            exempt: Addresses or networks of proxies, whose connections have no limit of their own; ``*`` for all.
        """
        self.limit = limit
        self.per_address = per_address
        self._exempt = parse_networks(exempt)
        # What waits for its turn, by urgency.
        self._turns: dict[Turn, deque[Callable[[], None]]] = {turn: deque() for turn in Turn}
        self._has_arrivals = False
        self._skipped_turns = 0
        self._peers: dict[str, _Peer] = {}
        self._open: dict[Connection, _Peer] = {}
        self._idle: OrderedDict[Connection, None] = OrderedDict()
        self._refused: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def idle(self) -> int:
        """Number of connections without a request."""
        return len(self._idle)

    def add(self, connection: Connection, address: str) -> None:
        """Count a new connection, idle.

        Raises:
            BusyError: If there is no room, and none of the connections that would have to make room is idle.
        """
        peer = self._peer(address)
        if peer.limit is not None and peer.open >= peer.limit:
            if not peer.idle:
                raise BusyError(
                    f"Your address has reached its limit of {peer.limit} open connections; close some, or try again "
                    "later.",
                    1,
                )
            self._close_oldest(peer.idle)
        elif len(self._open) >= self.limit:
            if not self._idle:
                raise BusyError("The server has reached its limit of open connections; try again later.", 1)
            self._close_oldest(self._idle)
        # Closing another connection of the address may have removed its last trace.
        self._peers[peer.key] = peer
        peer.open += 1
        self._has_arrivals = True
        self._open[connection] = peer
        self.mark_idle(connection)

    def add_request(self, address: str) -> None:
        """Count a request in flight that a proxy forwards for an address.

        Raises:
            BusyError: If it has as many as one address may have connections.
        """
        peer = self._peer(address)
        if peer.requests >= self.per_address:
            raise BusyError(
                f"Your address has reached its limit of {self.per_address} requests in flight; try again later.", 1
            )
        self._peers[peer.key] = peer
        peer.requests += 1

    def remove_request(self, address: str) -> None:
        """Remove a request that :meth:`add_request` has counted."""
        peer = self._peer(address)
        peer.requests -= 1
        self._drop_unused(peer)

    def refuse(self, connection: Connection) -> bool:
        """Return whether a connection for which there is no room may stay until it has read the refusal."""
        if len(self._refused) >= max(1, int(REFUSED_SHARE * self.limit)):
            return False
        self._refused.add(connection)
        return True

    def mark_idle(self, connection: Connection) -> None:
        """Note that no request is in flight on a connection."""
        peer = self._open.get(connection)
        if peer is not None:
            # Dictionaries keep the order in which connections became idle.
            self._idle[connection] = peer.idle[connection] = None

    def mark_busy(self, connection: Connection) -> None:
        """Note that a request, or a WebSocket, is in flight on a connection."""
        peer = self._open.get(connection)
        if peer is not None:
            self._idle.pop(connection, None)
            peer.idle.pop(connection, None)

    def replace(self, connection: Connection, successor: Connection) -> None:
        """Count ``successor`` in place of the connection that it replaces, as busy."""
        self.mark_busy(connection)
        peer = self._open.pop(connection, None)
        if peer is not None:
            self._open[successor] = peer

    def remove(self, connection: Connection) -> None:
        """Remove a connection, which has ended or is about to."""
        self._refused.discard(connection)
        self.mark_busy(connection)
        peer = self._open.pop(connection, None)
        if peer is not None:
            peer.open -= 1
            self._drop_unused(peer)

    def take_turn(self, go_on: Callable[[], None], turn: Turn) -> None:
        """Call ``go_on``, which works for one connection, when it is the connection's turn.

        One a turn of the event loop, after those of the same or more urgent kinds that were here before. So, however
        many requests clients send ahead, other clients do not wait for them.

        Args:
            go_on: The work.
            turn: Its kind.
        """
        if not any(self._turns.values()):
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._turns[turn].append(go_on)

    def _next_turn(self) -> None:
        waiting = next(filter(None, self._turns.values()))
        # The event loop accepts one connection in each of its turns: these should be short while many arrive.
        is_skipped = (
            self._has_arrivals
            and self._skipped_turns < MAX_SKIPPED_TURNS
            and waiting is not self._turns[Turn.HANDSHAKE]
        )
        self._has_arrivals = False
        self._skipped_turns = self._skipped_turns + 1 if is_skipped else 0
        go_on = None if is_skipped else waiting.popleft()
        if any(self._turns.values()):
            asyncio.get_running_loop().call_soon(self._next_turn)
        if go_on is not None:
            go_on()

    def end_stalled(self, now: float, seconds: float) -> None:
        """Abort the connections whose clients have taken nothing of their output for ``seconds``."""
        for connection in [*self._open, *self._refused]:
            connection.end_stalled(now, seconds)

    def _peer(self, address: str) -> _Peer:
        host = _parse_host(address)
        key = _peer_key(host)
        peer = self._peers.get(key)
        if peer is None:
            is_exempt = host is None or any(host in network for network in self._exempt)
            peer = _Peer(key, None if is_exempt else self.per_address)
        return peer

    def _drop_unused(self, peer: _Peer) -> None:
        # Or addresses that have left would add up.
        if not peer.open and not peer.requests:
            self._peers.pop(peer.key, None)

    def _close_oldest(self, connections: OrderedDict[Connection, None]) -> None:
        connection = next(iter(connections))
        # Not only when the connection has ended: its room is needed now.
        self.remove(connection)
        connection.close_idle()


def parse_networks(texts: Iterable[str]) -> list[Network]:
    """Return addresses and networks such as ``10.0.0.7`` and ``10.0.0.0/8`` as networks; ``*`` is every network.

    Raises:
        ValueError: If a text is none of these.
    """
    networks: list[Network] = []
    for text in texts:
        if text == "*":
            networks += [ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")]
        else:
            networks.append(ipaddress.ip_network(text))
    return networks


def _parse_host(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a client's address; None for a Unix domain socket, whose clients cannot be told apart."""
    try:
        host = ipaddress.ip_address(address)
    except ValueError:
        return None
    # A listener on :: sees IPv4 clients as ::ffff:a.b.c.d.
    return getattr(host, "ipv4_mapped", None) or host


def _peer_key(host: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> str:
    """Return what a client cannot freely change: an IPv4 address, or the first 64 bits of an IPv6 address."""
    if isinstance(host, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((host.packed, 64), strict=False))
    return str(host)


def raise_file_limit(needed: int = MAX_FILES) -> int:
    """Let the process open ``needed`` files if the system allows it; return how many it may open."""
    if sys.platform == "win32":
        return OPEN_FILES_WITHOUT_LIMIT
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    return max(needed, MAX_FILES) if soft == resource.RLIM_INFINITY else soft
