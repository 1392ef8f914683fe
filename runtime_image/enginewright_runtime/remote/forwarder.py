"""A proxy on the loopback interface, by which the clients of buckets connect only as `Peers` permits.

They are compiled, resolve names and follow redirects themselves, and have no hook for their sockets. TLS stays
between client and store.
"""

import os
import socket
import socketserver
import threading
import weakref
from contextlib import suppress
from typing import Final, cast
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from aiohttp import encode_basic_auth
from typing_extensions import override

from enginewright_runtime.remote.peers import Peers

_CHUNK: Final = 1 << 18
_LARGEST_HEAD: Final = 1 << 18
_PORTS: Final = {"http": 80, "https": 443}
_FAILED: Final = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_CONNECTED: Final = b"HTTP/1.1 200 Connected\r\n\r\n"
_CREDENTIALS_URI: Final = "AWS_CONTAINER_CREDENTIALS_FULL_URI"  # of EKS Pod Identity
# Metadata services demand one of these, which the clients send to nothing else, and no server can have them sent.
_LOOK_UPS: Final = (
    b"\r\nx-aws-ec2-metadata-token",
    b"\r\nmetadata-flavor: google",
    b"\r\nmetadata: true",
)


class Forwarder:
    """The proxy of one client, which ends with this object."""

    def __init__(self, peers: Peers) -> None:
        self._server = _Server(peers)
        weakref.finalize(self, self._server.stop)
        self.url: Final = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take_failure(self) -> OSError | None:
        """Return why the last request was not connected, and forget it."""
        failure, self._server.failure = self._server.failure, None
        return failure


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, peers: Peers) -> None:
        super().__init__(("127.0.0.1", 0), _Relay)
        self.peers = peers
        self.failure: OSError | None = None
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class _Relay(socketserver.BaseRequestHandler):
    """One request, or one tunnel."""

    @override
    def handle(self) -> None:
        server, client = cast("_Server", self.server), cast("socket.socket", self.request)
        head = _read_head(client)
        if head is None:
            return
        try:
            _forward(client, head, server.peers)
        except OSError as error:
            server.failure = error
            with suppress(OSError):
                client.sendall(_FAILED)


def _read_head(client: socket.socket) -> bytes | None:
    """Return a request with its headers, and what has come of its body."""
    head = b""
    while b"\r\n\r\n" not in head:
        more = client.recv(_CHUNK)
        head += more
        if not more or len(head) > _LARGEST_HEAD:
            return None
    return head


def _forward(client: socket.socket, head: bytes, peers: Peers) -> None:
    """Connect a request; raises OSError if that fails."""
    line, _, rest = head.partition(b"\r\n")
    method, target, version = line.decode("latin-1").split(" ")
    is_tunnel = method == "CONNECT"
    place = urlsplit(f"https://{target}" if is_tunnel else target)
    proxy = _proxy_of(place)
    if is_tunnel and proxy is None:
        first = b""
    else:  # one request a connection: only its head is read
        path = target if proxy else place._replace(scheme="", netloc="").geturl() or "/"
        close = "" if is_tunnel else "Connection: close\r\n"
        first = f"{method} {path} {version}\r\n{close}{_authorize(proxy)}".encode("latin-1") + rest
    at = proxy or place
    host, port = at.hostname or "", at.port or _PORTS[at.scheme]
    look_up = _is_look_up(target, head)
    with socket.create_connection((host, port)) if look_up else peers.connect(host, port) as peer:
        if is_tunnel and proxy is None:
            client.sendall(_CONNECTED)
        peer.sendall(first)
        sending = threading.Thread(target=_copy, args=(client, peer), daemon=True)
        sending.start()
        _copy(peer, client)
        sending.join()


def _is_look_up(target: str, head: bytes) -> bool:
    """Return whether a client asks the platform for its credentials, where no source can lead it."""
    agent = os.environ.get(_CREDENTIALS_URI)
    headers = head.partition(b"\r\n\r\n")[0].lower()
    return target == agent or any(mark in headers for mark in _LOOK_UPS)


def _proxy_of(place: SplitResult) -> SplitResult | None:
    """Return the proxy that the environment names for an address."""
    address = getproxies().get(place.scheme)
    if address is None or proxy_bypass(place.netloc):
        return None
    return urlsplit(address if "://" in address else f"http://{address}")


def _authorize(proxy: SplitResult | None) -> str:
    if proxy is None or not proxy.username:
        return ""
    account = encode_basic_auth(unquote(proxy.username), unquote(proxy.password or ""))
    return f"Proxy-Authorization: {account}\r\n"


def _copy(origin: socket.socket, target: socket.socket) -> None:
    """Copy until either ends; then neither goes on, as HTTP's sides do not."""
    with suppress(OSError):
        while data := origin.recv(_CHUNK):
            target.sendall(data)
    for end in (origin, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
