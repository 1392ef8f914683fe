"""Errors that are reported to clients."""

from typing import Self


class RequestError(Exception):
    """The request cannot be answered; the message is for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def detach(self) -> Self:
        """Return the error without frames and causes, a cycle that would hold the request's body."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self


class OutOfProfileError(RequestError):
    """A shape outside the model's shape profiles."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)
