"""Which addresses a source may be at: the one check, on the address that is connected.

A source, its redirects and its DNS answers are written by others, and a node's metadata service gives the node's
identity to every pod that asks. Names are never checked apart from connecting: they may resolve otherwise then.
"""

import os
import socket
from dataclasses import dataclass, field
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Any, Final, TypeAlias

from enginewright_contract.reasons import Reason
from enginewright_contract.task import REFUSED_NETWORKS_VARIABLE

from enginewright_runtime.core.failure import StageFailure

_Networks: TypeAlias = tuple[IPv4Network | IPv6Network, ...]
_CONNECT_SECONDS: Final = 15.0
_LINK_LOCAL: Final[_Networks] = (ip_network("169.254.0.0/16"), ip_network("fe80::/10"))
_METADATA: Final[_Networks] = (  # that are not link-local
    ip_network("fd00:ec2::/32"),  # Amazon's
    ip_network("fd20:ce::254/128"),  # Google's
    ip_network("168.63.129.16/32"),  # Azure's
    ip_network("100.100.100.200/32"),  # Alibaba's
    ip_network("192.0.0.192/32"),  # Oracle's
    ip_network("fd00:42::42/128"),  # Scaleway's
)
_NAT64: Final = ip_network("64:ff9b::/96")  # RFC 6052; the last 32 bits are an IPv4 address


class RefusedPeerError(PermissionError):
    """A connection to an address was not tried."""


def _read_networks() -> _Networks:
    listed = os.environ.get(REFUSED_NETWORKS_VARIABLE, "")
    return tuple(ip_network(text) for text in listed.split(",") if text)


@dataclass
class Peers:
    """Opens sockets of one client; `refusal` tells of the last address that it did not connect."""

    listed: _Networks = field(default_factory=_read_networks)  # by the administrator
    refusal: StageFailure | None = None

    def open_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Return a socket for the address in `info`, as `getaddrinfo` returns it; raises RefusedPeerError."""
        family, kind, protocol, _, address = info
        self._check(str(address[0]))
        return socket.socket(family, kind, protocol)

    def connect(self, host: str, port: int) -> socket.socket:
        """Return a connection to the first address of `host` that accepts one; raises OSError."""
        last: OSError | None = None
        for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                opened = self.open_socket(info)
            except OSError as error:
                last = error
                continue
            try:
                opened.settimeout(_CONNECT_SECONDS)
                opened.connect(info[4])
                opened.settimeout(None)
            except OSError as error:
                opened.close()
                last = error
            else:
                return opened
        raise last or OSError(f"{host} has no address")

    def _check(self, text: str) -> None:
        address = _as_routed(ip_address(text))
        if any(address in network for network in _LINK_LOCAL):
            kind = "a link-local address, as those of nodes and their metadata services are"
        elif any(address in network for network in _METADATA):
            kind = "the address of a cloud's metadata service"
        elif network := next((network for network in self.listed if address in network), None):
            kind = f"in the network {network}, which the administrator refuses"
        else:
            return
        cause = f"the source, or where it redirects to, is at {text}: {kind}"
        self.refusal = StageFailure(Reason.SOURCE_REFUSED, cause)
        raise RefusedPeerError(cause)


def _as_routed(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that packets to an IPv6 address reach, if they do."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
