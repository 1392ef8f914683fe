"""TLS of connections without the server: what the event loop's TLS leaves to them."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final

import pytest
import uvloop
from enginewright_serving.transport.acceptor import Acceptor
from enginewright_serving.transport.application import listen
from enginewright_serving.transport.connection import RECEIVE_BYTES, Connection
from enginewright_serving.transport.grpc.call import Calls
from enginewright_serving.transport.head import HeadParser
from enginewright_serving.transport.http2.connection import Http2Connection
from enginewright_serving.transport.http_application import HttpApplication
from enginewright_serving.transport.message import HttpRequest, HttpResponse
from enginewright_serving.transport.settings import TransportSettings
from enginewright_serving.transport.tls import TlsPort
from typing_extensions import override

from tests.support import http2
from tests.support.bare_tls import HalfClosing, send_key_updates
from tests.support.certificates import Authority
from tests.support.grpc_echo import EchoApp
from tests.support.serving import Wire, any_certificate

LARGE: Final = 8 << 20  # bytes of an answer
UPDATES: Final = 30_000  # of keys: a megabyte
GET: Final = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
SETTINGS: Final = TransportSettings()
TINY: Final = {  # what is sent, each byte in a record of at least 22, and what the answer contains
    "HTTP/1.1": (
        b"GET / HTTP/1.1\r\nHost: h\r\nX: %b\r\n\r\n" % bytes(6000).hex().encode(),
        b"200 OK",
    ),
    "HTTP/2": (
        http2.Client.opening + http2.Client().call(1, "/test.Echo/Echo", b"echo" * 3000),
        b"echo" * 3000,
    ),
}


class Answering(HttpApplication[Connection]):
    """Answers with many bytes."""

    @override
    def admit(self, request: HttpRequest) -> HttpResponse | None:
        return None

    @override
    def serve(self, connection: Connection, request: HttpRequest) -> HttpResponse | None:
        return HttpResponse(200, b"", [memoryview(bytes(LARGE))], LARGE)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    root = tmp_path_factory.mktemp("authority")
    for name, text in Authority(root / "ca").issue().files.items():
        (root / name).write_text(text)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(root / "tls.crt", root / "tls.key")
    return made


def serve(protocol: str, context: ssl.SSLContext, client: Callable[[int], Any]) -> Any:
    """Serve connections of a protocol, HTTP/1.1 or HTTP/2, while `client` uses their port in a thread."""

    async def main() -> Any:
        buffer = bytearray(RECEIVE_BYTES)
        http, grpc = Answering(SETTINGS), EchoApp(SETTINGS)
        calls = Calls(grpc)

        def connect() -> asyncio.BaseProtocol:
            if protocol == "HTTP/1.1":
                return Connection(http, HeadParser(), buffer)
            return Http2Connection(grpc, calls, buffer)

        listening = listen(0)
        port = listening.getsockname()[1]
        acceptor = Acceptor(listening, connect, lambda: False, TlsPort(lambda: context, SETTINGS))
        acts = asyncio.create_task(asyncio.to_thread(client, port))
        while not acts.done():
            await asyncio.sleep(0.02)
            await http.check_connections()
            grpc.check(asyncio.get_running_loop().time())
        acceptor.close()
        return acts.result()

    return uvloop.run(main())


# fault: Requests | a client over TLS says with its request that it sends no more | what is not written yet is written at
#   once | the client has its answer
def test_a_client_that_sends_no_more_reads_its_whole_answer(context: ssl.SSLContext) -> None:
    def act(port: int) -> bytes:
        with HalfClosing(port) as client:
            client.send_last(GET)
            return client.receive_all()

    head, body = serve("HTTP/1.1", context, act).split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert len(body) == LARGE


# fault: Hostile | a client over TLS sends endless updates of keys, and no data | its connection is closed |
#   others have the processor
@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
def test_a_client_that_only_updates_its_keys_is_closed(
    protocol: str, context: ssl.SSLContext
) -> None:
    taken = serve(protocol, context, lambda port: send_key_updates(port, UPDATES))
    assert 1000 < taken < UPDATES, "a few are no harm"


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
def test_a_client_that_sends_its_data_in_tiny_records_is_served(
    protocol: str, context: ssl.SSLContext
) -> None:
    sent, answer = TINY[protocol]

    def act(port: int) -> None:
        with Wire(port, tls=any_certificate()) as wire:
            for at in range(len(sent)):
                wire.send(sent[at : at + 1])
            received = b""
            while answer not in received:
                part = wire.tls.recv(1 << 16)
                assert part, "closed"
                received += part

    serve(protocol, context, act)
