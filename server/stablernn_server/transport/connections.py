"""The open connections of one server process, and their limits.

A connection costs a client nothing and the server a file descriptor. So idle connections make room for others: the one
that has been idle longest is closed when its address, or the whole process, has too many.
"""

from __future__ import annotations

import ipaddress
import sys
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

MAX_FILES = 11_000
"""Open files that a process asks the system for unless a setting needs more; many systems begin with 1,024."""
CONNECTION_SHARE = 0.8
"""Share of the open files that connections may take. The rest is for models, the registry, and connections that are
refused."""
IDLE_SHARE = 0.25
"""Share of the connections that one address may keep open without a request."""
REFUSED_SHARE = 0.05
"""Connections beyond the limit that may stay open until they have read the refusal, as a share of the limit."""
OPEN_FILES_WITHOUT_LIMIT = 10_000
"""Assumed where the system does not say how many files a process may open (Windows)."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Connection(Protocol):
    """A connection, as far as the table needs to know it."""

    def close_idle(self) -> None:
        """Close the connection, on which no request is in flight."""


@dataclass(slots=True)
class _Peer:
    """The connections of one address."""

    key: str
    limit: int | None
    open: int = 0
    idle: OrderedDict[Connection, None] = field(default_factory=OrderedDict)


class ConnectionTable:
    """Open connections by address, the idle ones in the order in which they became idle. For the event loop alone."""

    def __init__(self, limit: int, idle_per_address: int, exempt: Iterable[str] = ()) -> None:
        """Create an empty table.

        Args:
            limit: Connections in all.
            idle_per_address: Idle connections from one address.
            exempt: Addresses or networks of proxies, which have no limit of their own; ``*`` for all.
        """
        self.limit = limit
        self.idle_per_address = idle_per_address
        self._exempt = parse_networks(exempt)
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

    def add(self, connection: Connection, address: str) -> bool:
        """Count a new connection, idle; return False if there is no room although every idle one has been closed."""
        if len(self._open) >= self.limit:
            if not self._idle:
                return False
            self._close_oldest(self._idle)
        host = _parse_host(address)
        key = _peer_key(host)
        peer = self._peers.get(key)
        if peer is None:
            is_exempt = host is None or any(host in network for network in self._exempt)
            peer = self._peers[key] = _Peer(key, None if is_exempt else self.idle_per_address)
        peer.open += 1
        self._open[connection] = peer
        self.mark_idle(connection)
        return True

    def refuse(self, connection: Connection) -> bool:
        """Return whether a connection for which there is no room may stay until it has read the refusal."""
        if len(self._refused) >= max(1, int(REFUSED_SHARE * self.limit)):
            return False
        self._refused.add(connection)
        return True

    def mark_idle(self, connection: Connection) -> None:
        """Note that no request is in flight on a connection, and close another one where there are too many."""
        peer = self._open.get(connection)
        if peer is None:
            return
        # Dictionaries keep the order in which connections became idle.
        self._idle[connection] = peer.idle[connection] = None
        if peer.limit is not None and len(peer.idle) > peer.limit:
            self._close_oldest(peer.idle)

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
            # Or addresses that have left would add up.
            if not peer.open:
                del self._peers[peer.key]

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
