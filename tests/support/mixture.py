"""A client that does something else each time: it asks, is wrong, cancels, or leaves at any moment.

Every answer is compared with its own request, and every request is tallied. As a program, it has some of these
clients act on a server that runs, for a while, and prints their tally as JSON.
"""

import gzip
import json
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import grpc
from enginewright_contract.task import ServeTask
from enginewright_serving.server.protocol.grpc import messages

from tests.support import http2
from tests.support.questions import Question, Source, ask_to_triple, read_grpc, read_http
from tests.support.serving import COPY, Answer, ServerPorts, Wire, any_certificate
from tests.support.tally import Counts, Tally

INFER = "/inference.GRPCInferenceService/ModelInfer"
FRAME = 16_000
CHUNK = 1 << 16
_GOOD: Final = 200
_INVALID: Final = 400
_TOO_MUCH: Final = (408, 503, 504)  # late or slow, or too many
_TOO_MUCH_GRPC: Final = (
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
)


class Mixture:
    """One client."""

    def __init__(
        self,
        server: ServerPorts,
        seed: int,
        *,
        source: Source,
        has_steps: bool = False,
        token: str = "",
        tls: bytes | None = None,
    ) -> None:
        """Create it; `tls` is the authority's certificate, if the ports speak TLS."""
        self.answers: Counter[str] = Counter()
        self.tally = Tally()
        self._server = server
        self._seed = seed
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._source = source
        self._has_steps = has_steps
        self._tls = tls
        self._auth = {"Authorization": f"Bearer {token}"} if token else {}
        self._asked = 0
        self._unanswered = 0  # of this act
        self._acts: list[Callable[[], None]] = [
            *(self._ask, self._ask, self._leave, self._leave, self._send_a_part, self._be_wrong),
            *(self._read_figures, self._pipeline, self._send_chunks, self._prove, self._take_copy),
            *(self._call, self._call, self._call_in_gzip, self._cancel, self._reset, self._copy),
        ]

    def run(self, count: int) -> None:
        """Do so many things."""
        for _ in range(count):
            self._act()

    def run_until(self, end: float) -> None:
        """Do things until a time, as `time.monotonic()` has it."""
        while time.monotonic() < end:
            self._act()

    def _act(self) -> None:
        act = self._random.choice(self._acts)
        try:
            act()
        except TimeoutError as error:
            self.tally.wrong.append(f"{act.__name__}: {error}")
        except (OSError, EOFError) as error:
            self.answers[f"{act.__name__}: {type(error).__name__}"] += 1
        self.tally.unsure += self._unanswered
        self._unanswered = 0

    def _pause(self, *seconds: float) -> None:
        time.sleep(self._random.choice(seconds))

    def _is(self, chance: float) -> bool:
        return self._random.random() < chance

    def _question(self) -> Question:
        self._asked += 1
        return self._source(self._random, f"{self._seed}-{self._asked}")

    def _parameters(self) -> dict[str, int]:
        parameters = {}
        if self._is(0.3):
            parameters["timeout"] = self._random.choice([1, 1_000, 10_000, 5_000_000])
        if self._is(0.3):
            parameters["priority"] = self._random.choice([1, 2, 5])
        return parameters

    # HTTP.

    def _request(self, headers: Mapping[str, str] | None = None) -> tuple[Question, bytes]:
        question = self._question()
        described, data = dict(question.described), question.data
        if question.numbers is not None and self._is(0.5):
            described["data"], data = question.numbers, b""
        else:
            described["parameters"] = {"binary_data_size": len(data)}
        parameters = self._parameters() | {"binary_data_output": self._is(0.5)}
        document = {"id": question.identifier, "inputs": [described], "parameters": parameters}
        fields = self._auth | dict(headers or {})
        return question, self._server.infer_request(document, data, headers=fields)

    def _get(self, path: str, fields: dict[str, str], size: int = 0) -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        head = f"GET {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n{lines}\r\n"
        return head.encode() + bytes(size)

    def _send(self, wire: Wire, headers: Mapping[str, str] | None = None) -> Question:
        question, request = self._request(headers)
        self._unanswered += 1
        wire.send(request)
        return question

    def _receive(self, wire: Wire, question: Question | None) -> None:
        """Read the answer to an inference, which is invalid without a question."""
        answer = wire.receive()
        self._unanswered -= 1
        self.tally.answered[answer.status] += 1
        self._check(answer, question)

    def _check(self, answer: Answer, question: Question | None) -> None:
        self.answers[str(answer.status)] += 1
        is_valid = question is not None and question.expected is not None
        if answer.status not in (_GOOD if is_valid else _INVALID, *_TOO_MUCH):
            self.tally.wrong.append(f"{answer.status}: {answer.body[:200]!r}")
        elif answer.status == _GOOD and question is not None:
            self._compare(question, *read_http(answer, question.output))

    def _compare(self, question: Question, identifier: str, values: Any) -> None:
        if not question.is_own(identifier, values):
            self.tally.wrong.append(
                f"{question.identifier} got {identifier}: {values[:4]} of {values.size}"
            )

    def _abort(self, wire: Wire) -> bool:
        """Have the socket closed, sometimes with a reset; return whether it is one."""
        resets = self._is(0.5)
        if resets:
            now = struct.pack("ii", 1, 0)
            wire._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
        return resets

    def _ask(self) -> None:
        with self._server.wire() as wire:
            for _ in range(self._random.choice([1, 5])):
                self._receive(wire, self._send(wire))

    def _leave(self) -> None:
        with self._server.wire() as wire:
            self._send(wire)
            self._pause(0, 0, 0.001, 0.01)
            if not self._abort(wire):  # the server reads all of it
                self._unanswered -= 1
                self.tally.left += 1

    def _send_a_part(self) -> None:
        _, request = self._request()
        with self._server.wire() as wire:
            self._unanswered += 1
            wire.send(request[: self._random.randrange(len(request))])
            self._pause(0, 0, 0.01, 0.3)
            self._abort(wire)

    def _be_wrong(self) -> None:
        with self._server.wire() as wire:
            self._unanswered += 1
            wire.send(self._server.infer_request(b'{"inputs": [{"name"', headers=self._auth))
            self._receive(wire, None)

    def _read_figures(self) -> None:
        path = self._random.choice(["/metrics", "/v2/models/m/stats", "/v2/models/m/execution"])
        with ExitStack() as stack:
            count = self._random.choice([1, 30])
            wires = [stack.enter_context(self._server.wire()) for _ in range(count)]
            for wire in wires:
                wire.send(self._get(path, self._auth, 5_000))
            if self._is(0.5):
                wires[0].receive()

    def _pipeline(self) -> None:
        with self._server.wire() as wire:
            sent = [self._request() for _ in range(self._random.choice([2, 8]))]
            self._unanswered += len(sent)
            wire.send(b"".join(request for _, request in sent))
            for question, _ in sent[: self._random.randrange(len(sent))]:
                self._receive(wire, question)

    def _send_chunks(self) -> None:
        question, request = self._request()
        head, _, body = request.partition(b"\r\n\r\n")
        lines = [data for data in head.split(b"\r\n") if not data.startswith(b"Content-Length")]
        with self._server.wire() as wire:
            self._unanswered += 1
            wire.send(b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", b""]))
            for at in range(0, len(body), CHUNK):
                part = body[at : at + CHUNK]
                wire.send(b"%x\r\n%b\r\n" % (len(part), part))
                if self._is(0.1):
                    return
            wire.send(b"0\r\n\r\n")
            self._receive(wire, question)

    def _prove(self) -> None:
        """Send a golden inference of the sidecar, which is counted only past the lane of probes."""
        fields = self._server.probe_header()
        if self._is(0.5):
            fields["Enginewright-Defer"] = self._random.choice(["1", "50", "5000"])
        with self._server.wire() as wire:
            question = self._send(wire, fields)
            if self._is(0.5):
                answer = wire.receive()
                if answer.status == _GOOD or not self._has_steps:  # which probes pass by
                    self._check(answer, question)

    def _copy(self) -> None:
        """Send a copy of another pod's request; without the right token it is a client's."""
        with self._server.wire() as wire:
            if self._is(0.3):
                self._receive(wire, self._send(wire, {"Enginewright-Shadow": "1"}))
                return
            question, request = self._request(COPY)
            self.tally.unsure_copies += 1
            wire.send(request)
            if self._is(0.7):
                answer = wire.receive()
                self.tally.unsure_copies -= 1
                self.tally.copies[answer.status] += 1
                self._check(answer, question)

    def _take_copy(self) -> None:
        with self._server.wire() as wire:
            path = "/v2/models/m/shadow?share=0.5"
            wire.send(self._get(path, self._server.probe_header()))
            wire.receive()

    # gRPC.

    def _message(self) -> tuple[Question, bytes]:
        question = self._question()
        request = messages.InferRequest(
            model_name="m",
            id=question.identifier,
            inputs=[question.described],
            raw_input_contents=[question.data],
        )
        for name, number in self._parameters().items():
            request.parameters.add(key=name, value={"int64_param": number})
        return question, request.SerializeToString()

    def _channel(self) -> grpc.Channel:
        target = f"localhost:{self._server.grpc_port}"
        if self._tls is None:
            return grpc.insecure_channel(target)
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(self._tls))

    def _metadata(self) -> list[tuple[str, str]]:
        return [(name.lower(), value) for name, value in self._auth.items()]

    def _begin(
        self, channel: grpc.Channel, count: int, **options: Any
    ) -> list[tuple[Question, Any]]:
        infer = channel.unary_unary(INFER)
        calls = []
        for _ in range(count):
            question, message = self._message()
            self._unanswered += 1
            call = infer.future(message, metadata=self._metadata(), **options)
            calls.append((question, call))
        return calls

    def _call(self, compression: grpc.Compression | None = None) -> None:
        with self._channel() as channel:
            seconds = self._random.choice([0.002, 0.02, 5, 5])
            count = self._random.choice([1, 6])
            for question, call in self._begin(
                channel, count, timeout=seconds, compression=compression
            ):
                self._receive_call(question, call)

    def _receive_call(self, question: Question, call: Any) -> None:
        """Read what comes of a call; whether the server refused it or the client gave up, is the same code."""
        code = call.code()
        self.answers[code.name] += 1
        if code is grpc.StatusCode.OK:
            self._unanswered -= 1
            self.tally.answered[_GOOD] += 1
            self._compare(question, *read_grpc(call.result(), question.output))
        elif code not in _TOO_MUCH_GRPC and (
            code is not grpc.StatusCode.INVALID_ARGUMENT or question.expected is not None
        ):
            self.tally.wrong.append(f"{code.name}: {call.details()}")

    def _call_in_gzip(self) -> None:
        self._call(grpc.Compression.Gzip)

    def _cancel(self) -> None:
        with self._channel() as channel:
            sent = self._begin(channel, 4, timeout=5)
            self._pause(0, 0.001, 0.02)
            for _, call in sent:
                if self._is(0.7):
                    call.cancel()

    def _reset(self) -> None:
        """Send parts of messages, some compressed, and reset some of the streams."""
        context = None
        if self._tls is not None:
            context = any_certificate()
            context.set_alpn_protocols(["h2"])
        _, message = self._message()
        client, is_compressed = http2.Client(), self._is(0.5)
        data = gzip.compress(message, 1) if is_compressed else message
        more = [*self._metadata(), *([("grpc-encoding", "gzip")] if is_compressed else [])]
        sent, out = http2.message(data, int(is_compressed)), client.opening
        for stream in (1, 3, 5):
            self._unanswered += 1
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


def read_counts(server: ServerPorts) -> Counts:
    """Return what a server says of its requests."""
    statistics, metrics = (
        server.get(path, headers=server.probe_header())
        for path in ("/v2/models/m/stats", "/metrics")
    )
    return Counts.read(metrics.body.decode(), statistics.json())


def _run() -> None:
    root, task, port, grpc_port, seconds, count = sys.argv[1:]
    server = ServerPorts(Path(root), ServeTask.model_validate_json(task), int(port), int(grpc_port))
    clients = [Mixture(server, seed, source=ask_to_triple) for seed in range(int(count))]
    end = time.monotonic() + float(seconds)
    threads = [threading.Thread(target=client.run_until, args=(end,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = Tally()
    for client in clients:
        together.add(client.tally)
    print(json.dumps(together.write()))


if __name__ == "__main__":
    _run()
