"""Answers requests for metrics together: writing these blocks the event loop for milliseconds."""

from collections import deque
from collections.abc import Callable
from typing import Final

from enginewright_serving.transport.connection import Connection
from enginewright_serving.transport.input_turns import InputTurns
from enginewright_serving.transport.message import HttpRequest, HttpResponse

_AT_ONCE: Final = 16  # answers in one turn of the event loop


class Scrapes:
    """The requests for metrics that wait; those that wait together have the same answer."""

    def __init__(self, turns: InputTurns, expose: Callable[[], HttpResponse]) -> None:
        self._turns = turns
        self._expose = expose
        self._waiting: deque[tuple[Connection, HttpRequest]] = deque()
        # those that waited when the answer was built
        self._answered: deque[tuple[Connection, HttpRequest]] = deque()
        self._answer: HttpResponse | None = None

    def take(self, connection: Connection, request: HttpRequest) -> None:
        """Answer a connection's request when it is its turn."""
        self._waiting.append((connection, request))
        if len(self._waiting) == 1 and not self._answered:
            self._turns.take(self._proceed)

    def _proceed(self) -> None:
        if self._answer is None:
            self._answer = self._expose()
            self._answered, self._waiting = self._waiting, self._answered
        answer, answered = self._answer, self._answered
        for _ in range(min(len(answered), _AT_ONCE)):
            connection, request = answered.popleft()
            connection.respond(request, answer)
        if not answered:
            self._answer = None
        if answered or self._waiting:
            self._turns.take(self._proceed)
