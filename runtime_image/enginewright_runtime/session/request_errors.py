"""What a client may learn when its request is not answered."""


class RequestError(Exception):
    """A request that gets an error instead of tensors; the message is for its sender."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class OutOfProfileError(RequestError):
    """A shape that the model's declared shape profiles do not allow."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)
