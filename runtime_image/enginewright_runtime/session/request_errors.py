"""Errors that are reported to clients."""


class RequestError(Exception):
    """The request cannot be answered; the message is for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class OutOfProfileError(RequestError):
    """A shape outside the model's shape profiles."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)
