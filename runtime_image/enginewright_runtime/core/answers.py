"""The results of child processes: ASCII JSON for every Python string, as neither locale nor file names need be UTF-8."""

import json
from typing import Self

from enginewright_contract.base import Message


class ProcessAnswer(Message):
    """The result of a child process."""

    def encode(self) -> str:
        """Return it as one line of ASCII; NaN and infinities as Python's `json` writes them."""
        return json.dumps(self.model_dump())

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Parse the output of `encode`; raises ValueError if it is truncated or invalid."""
        return cls.model_validate(json.loads(content))
