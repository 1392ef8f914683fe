"""Answers requests for metrics together: writing these blocks the event loop for milliseconds."""

from collections import deque
from collections.abc import Callable
from typing import Final

from enginewright_serving.transport.connection import Connection
from enginewright_serving.transport.input_turns import InputTurns
from enginewright_serving.transport.message import HttpResponse

_AT_ONCE: Final = 16  # answers in one turn of the event loop


class Scrapes:
    """The requests for metrics that wait; those that wait together have the same answer."""

    def __init__(self, turns: InputTurns, expose: Callable[[], HttpResponse]) -> None:
        self._turns = turns
        self._expose = expose
        self._waiting: deque[Connection] = deque()
        self._answered: deque[Connection] = deque()  # that waited when the answer was built
        self._answer: HttpResponse | None = None

    def take(self, connection: Connection) -> None:
        """Answer a connection's request when it is its turn."""
        self._waiting.append(connection)
        if len(self._waiting) == 1 and not self._answered:
            self._turns.take(self._proceed)

    def _proceed(self) -> None:
        if self._answer is None:
            self._answer = self._expose()
            self._answered, self._waiting = self._waiting, self._answered
        answer, answered = self._answer, self._answered
        for _ in range(min(len(answered), _AT_ONCE)):
            answered.popleft().respond(answer)
        if not answered:
            self._answer = None
        if answered or self._waiting:
            self._turns.take(self._proceed)
