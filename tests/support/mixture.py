"""A client that does something else each time: it asks, is wrong, cancels, or leaves at any moment."""

import gzip
import random
import socket
import struct
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import grpc
from enginewright_serving.server.protocol.grpc import messages

from tests.support import http2, processing
from tests.support.serving import COPY, Server, Wire, any_certificate

if TYPE_CHECKING:
    from collections.abc import Callable

INFER = "/inference.GRPCInferenceService/ModelInfer"
ROWS = (1, 1, 2, 3, 5, 40, 2_000, 30_000)
FRAME = 16_000
CHUNK = 1 << 16


class Mixture:
    """One client of the linear model, or of images."""

    def __init__(
        self, server: Server, seed: int, *, images: bool, token: str = "", tls: bytes | None = None
    ) -> None:
        """Create it; `tls` is the authority's certificate, if the ports speak TLS."""
        self.answers: Counter[str] = Counter()
        self._server = server
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._images = images
        self._tls = tls
        self._auth = {"Authorization": f"Bearer {token}"} if token else {}

    def run(self, count: int) -> None:
        """Do so many things."""
        acts: list[Callable[[], None]] = [
            *(self._ask, self._ask, self._leave, self._leave, self._send_a_part, self._be_wrong),
            *(self._read_figures, self._pipeline, self._send_chunks, self._prove, self._take_copy),
            *(self._call, self._call, self._call_in_gzip, self._cancel, self._reset),
        ]
        for _ in range(count):
            act = self._random.choice(acts)
            try:
                act()
            except (OSError, EOFError) as error:
                self.answers[f"{act.__name__}: {type(error).__name__}"] += 1

    def _pause(self, *seconds: float) -> None:
        time.sleep(self._random.choice(seconds))

    def _is(self, chance: float) -> bool:
        return self._random.random() < chance

    def _tensor(self) -> tuple[dict[str, Any], bytes]:
        if not self._images:
            rows = self._random.choice(ROWS)
            return {"name": "x", "datatype": "FP32", "shape": [rows, 8]}, bytes(rows * 32)
        size = self._random.choice([8, 32, 200, 900])
        data = processing.picture((200, 9, size % 200), self._random.choice(["JPEG", "PNG"]), size)
        if self._is(0.2):
            data = data[: len(data) // 2]
        return {"name": "image", "datatype": "UINT8", "shape": [len(data)]}, data

    def _parameters(self) -> dict[str, int]:
        parameters = {}
        if self._is(0.3):
            parameters["timeout"] = self._random.choice([1, 1_000, 10_000, 5_000_000])
        if self._is(0.3):
            parameters["priority"] = self._random.choice([1, 2, 5])
        return parameters

    # HTTP.

    def _request(self) -> bytes:
        described, data = self._tensor()
        described["parameters"] = {"binary_data_size": len(data)}
        parameters = self._parameters() | {"binary_data_output": self._is(0.5)}
        document = {"inputs": [described], "parameters": parameters}
        return self._server.infer_request(document, data, headers=self._auth)

    def _get(self, path: str, fields: dict[str, str], size: int = 0) -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        head = f"GET {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n{lines}\r\n"
        return head.encode() + bytes(size)

    def _note(self, wire: Wire) -> None:
        self.answers[str(wire.receive().status)] += 1

    def _abort(self, wire: Wire) -> None:
        """Have the socket closed, sometimes with a reset."""
        if self._is(0.5):
            now = struct.pack("ii", 1, 0)
            wire._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)

    def _ask(self) -> None:
        with self._server.wire() as wire:
            for _ in range(self._random.choice([1, 5])):
                wire.send(self._request())
                self._note(wire)

    def _leave(self) -> None:
        with self._server.wire() as wire:
            wire.send(self._request())
            self._pause(0, 0, 0.001, 0.01)
            self._abort(wire)

    def _send_a_part(self) -> None:
        request = self._request()
        with self._server.wire() as wire:
            wire.send(request[: self._random.randrange(len(request))])
            self._pause(0, 0, 0.01, 0.3)
            self._abort(wire)

    def _be_wrong(self) -> None:
        with self._server.wire() as wire:
            wire.send(self._server.infer_request(b'{"inputs": [{"name"', headers=self._auth))
            self._note(wire)

    def _read_figures(self) -> None:
        path = self._random.choice(["/metrics", "/v2/models/m/stats", "/v2/models/m/execution"])
        with ExitStack() as stack:
            count = self._random.choice([1, 30])
            wires = [stack.enter_context(self._server.wire()) for _ in range(count)]
            for wire in wires:
                wire.send(self._get(path, self._auth, 5_000))
            if self._is(0.5):
                self._note(wires[0])

    def _pipeline(self) -> None:
        with self._server.wire() as wire:
            count = self._random.choice([2, 8])
            wire.send(b"".join(self._request() for _ in range(count)))
            for _ in range(self._random.randrange(count)):
                self._note(wire)

    def _send_chunks(self) -> None:
        head, _, body = self._request().partition(b"\r\n\r\n")
        lines = [data for data in head.split(b"\r\n") if not data.startswith(b"Content-Length")]
        with self._server.wire() as wire:
            wire.send(b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", b""]))
            for at in range(0, len(body), CHUNK):
                part = body[at : at + CHUNK]
                wire.send(b"%x\r\n%b\r\n" % (len(part), part))
                if self._is(0.1):
                    return
            wire.send(b"0\r\n\r\n")
            self._note(wire)

    def _prove(self) -> None:
        """Send a golden inference of the sidecar, or a copy of a request."""
        fields = self._server.probe_header() | self._auth
        if self._is(0.5):
            fields["Enginewright-Defer"] = self._random.choice(["1", "50", "5000"])
        if self._is(0.3):
            fields |= COPY if self._is(0.5) else {"Enginewright-Shadow": "1"}
        x = {"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [1.0] * 8}
        with self._server.wire() as wire:
            wire.send(self._server.infer_request({"inputs": [x]}, headers=fields))
            if self._is(0.5):
                self._note(wire)

    def _take_copy(self) -> None:
        with self._server.wire() as wire:
            path = "/v2/models/m/shadow?share=0.5"
            wire.send(self._get(path, self._server.probe_header()))
            self._note(wire)

    # gRPC.

    def _message(self) -> bytes:
        described, data = self._tensor()
        request = messages.InferRequest(
            model_name="m", inputs=[described], raw_input_contents=[data]
        )
        for name, number in self._parameters().items():
            request.parameters.add(key=name, value={"int64_param": number})
        message: bytes = request.SerializeToString()
        return message

    def _channel(self) -> grpc.Channel:
        target = f"localhost:{self._server.grpc_port}"
        if self._tls is None:
            return grpc.insecure_channel(target)
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(self._tls))

    def _metadata(self) -> list[tuple[str, str]]:
        return [(name.lower(), value) for name, value in self._auth.items()]

    def _begin(self, channel: grpc.Channel, count: int, **options: Any) -> list[Any]:
        infer = channel.unary_unary(INFER)
        metadata = self._metadata()
        return [infer.future(self._message(), metadata=metadata, **options) for _ in range(count)]

    def _call(self, compression: grpc.Compression | None = None) -> None:
        with self._channel() as channel:
            seconds = self._random.choice([0.002, 0.02, 5, 5])
            count = self._random.choice([1, 6])
            for item in self._begin(channel, count, timeout=seconds, compression=compression):
                self.answers[item.code().name] += 1

    def _call_in_gzip(self) -> None:
        self._call(grpc.Compression.Gzip)

    def _cancel(self) -> None:
        with self._channel() as channel:
            sent = self._begin(channel, 4, timeout=5)
            self._pause(0, 0.001, 0.02)
            for item in sent:
                if self._is(0.7):
                    item.cancel()

    def _reset(self) -> None:
        """Send parts of messages, some compressed, and reset some of the streams."""
        context = None
        if self._tls is not None:
            context = any_certificate()
            context.set_alpn_protocols(["h2"])
        client, is_compressed = http2.Client(), self._is(0.5)
        data = gzip.compress(self._message(), 1) if is_compressed else self._message()
        more = [*self._metadata(), *([("grpc-encoding", "gzip")] if is_compressed else [])]
        sent, out = http2.message(data, int(is_compressed)), client.opening
        for stream in (1, 3, 5):
            out += client.headers(stream, http2.call_headers(INFER, *more))
            end = self._random.randrange(1, min(len(sent), 4 * FRAME) + 1)
            for at in range(0, end, FRAME):
                out += http2.data(stream, sent[at : min(at + FRAME, end)])
            if self._is(0.5):
                out += http2.frame(3, 0, stream, bytes(4))  # RST_STREAM
        with Wire(self._server.grpc_port, tls=context) as wire:
            wire.send(out)
            self._pause(0, 0.005, 0.2)
            self._abort(wire)
