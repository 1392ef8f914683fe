"""A gRPC server that answers with what it is sent, in a process of its own: `python -m` this, with its options.

Without the inference server, whose model and codec take their own time.
"""

import argparse
import asyncio
import signal
import sys
import time
from dataclasses import fields
from typing import Final

import uvloop
from enginewright_serving.transport.application import listen
from enginewright_serving.transport.grpc.call import Calls, GrpcCall, Reply
from enginewright_serving.transport.grpc.status import Code, Status
from enginewright_serving.transport.http2.connection import Http2Connection
from enginewright_serving.transport.inflight import InFlight
from enginewright_serving.transport.input_turns import InputTurns
from enginewright_serving.transport.settings import TransportSettings

ECHO: Final = b"/test.Echo/Echo"
LATER: Final = b"/test.Echo/Later"  # answers after the seconds that the message says
FAIL: Final = b"/test.Echo/Fail"  # with the message as the status message
METADATA: Final = b"/test.Echo/Metadata"  # answers with the metadata `x-test`
LARGE: Final = b"/test.Echo/Large"  # answers with as many bytes as the message says
SEEN: Final = b"/test.Echo/Seen"  # answers with what the server counted, as `name=number` lines
METHODS: Final = frozenset({ECHO, LATER, FAIL, METADATA, LARGE, SEEN})
ALIGNED: Final = b"1"  # the first one of a message is where the application wants alignment
LARGEST: Final = 64 * 1024 * 1024
RECEIVE_BYTES: Final = 256 * 1024


class EchoApp:
    """The application of the server, and of tests without a socket."""

    metadata = frozenset({b"x-test"})

    def __init__(self, settings: TransportSettings) -> None:
        self.settings = settings
        self.draining = False
        self.connections: set[Http2Connection] = set()
        self.inflight = InFlight(settings)
        self.turns = InputTurns(rests_above=4)
        self.served = 0
        self.dropped = 0
        self.waiting: list[GrpcCall] = []

    @property
    def held(self) -> int:
        return self.inflight.account.total

    def add_connection(self, connection: Http2Connection) -> bool:
        has_capacity = len(self.connections) < self.settings.connections
        self.connections.add(connection)
        return has_capacity

    def remove_connection(self, connection: Http2Connection) -> None:
        self.connections.discard(connection)

    def check(self, now: float) -> None:
        for connection in tuple(self.connections):
            connection.check(now)

    def admit(self, call: GrpcCall) -> Status | None:
        if call.method not in METHODS:
            return Status(Code.UNIMPLEMENTED, f"no method {call.method.decode(errors='replace')}")
        return None

    def find_alignment(self, beginning: memoryview) -> int:
        return max(0, bytes(beginning).find(ALIGNED))

    def check_size(self, call: GrpcCall, size: int) -> Status | None:
        del call
        if size > LARGEST:
            return Status(Code.RESOURCE_EXHAUSTED, f"the message exceeds {LARGEST} bytes")
        return None

    def refuse_bytes(self, call: GrpcCall, why: str) -> Status:
        del call
        return Status(Code.UNAVAILABLE, why)

    def refuse_late(self, call: GrpcCall) -> Status:
        del call
        return Status(Code.DEADLINE_EXCEEDED, "too late")

    def release(self, call: GrpcCall) -> None:
        self.inflight.release(call)

    def on_answered(self, call: GrpcCall) -> None:
        raise AssertionError(f"{call.method.decode()} is no inference of a model")

    on_left = on_answered

    def serve(self, call: GrpcCall) -> Reply | Status | None:
        self.served += 1
        assert call.message is not None
        content = call.message.view()
        if call.method == FAIL:
            return Status(Code.INVALID_ARGUMENT, content.tobytes().decode(errors="replace"))
        if call.method == METADATA:
            value = call.metadata.get(b"x-test", b"")
            return Reply([value], len(value))
        if call.method == SEEN:
            text = (
                f"served={self.served}\ndropped={self.dropped}\ninflight={self.held}\n"
                f"connections={len(self.connections)}\nwaiting={len(self.waiting)}"
            ).encode()
            return Reply([text], len(text))
        if call.method == ECHO:
            return Reply([content], len(content))
        return self._serve_number(call, content)

    def _serve_number(self, call: GrpcCall, content: memoryview) -> Reply | Status | None:
        try:
            number = float(content.tobytes())
        except ValueError:
            number = -1.0
        if not 0 <= number <= LARGEST:
            return Status(Code.INVALID_ARGUMENT, "the message is no number in range")
        if call.method == LARGE:
            return Reply([memoryview(bytes(int(number)))], int(number))
        self.waiting.append(call)
        asyncio.get_running_loop().call_later(number, self.answer, call)
        return None

    def answer(self, call: GrpcCall) -> None:
        self.waiting.remove(call)
        assert call.message is not None
        if call.abandoned:
            self.dropped += 1
            self.release(call)
        else:
            call.respond(Reply([call.message.view()], call.message.length))


async def _serve(settings: TransportSettings) -> None:
    loop = asyncio.get_running_loop()
    app = EchoApp(settings)
    calls, buffer = Calls(app), bytearray(RECEIVE_BYTES)
    listening = listen(0)
    server = await loop.create_server(lambda: Http2Connection(app, calls, buffer), sock=listening)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    print(listening.getsockname()[1], flush=True)
    while not stop.is_set():
        await asyncio.sleep(settings.sweep_seconds)
        app.check(time.monotonic())
    app.draining = True
    server.close()
    for connection in tuple(app.connections):
        connection.close_idle()
    while app.connections:
        await asyncio.sleep(settings.sweep_seconds)
        app.check(time.monotonic())


def main() -> int:
    parser = argparse.ArgumentParser()
    for field in fields(TransportSettings):
        if field.type in ("int", "float", int, float):
            parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    uvloop.run(_serve(TransportSettings(**vars(parser.parse_args()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
