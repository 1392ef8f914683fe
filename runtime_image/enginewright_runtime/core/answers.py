"""How child processes of ours answer: as JSON that is ASCII and holds whatever Python strings hold.

The locale of a child need not be UTF-8, nor the text that it answers with, such as the name of a file.
"""

import json
from typing import Self

from enginewright.contract.base import Message


class ProcessAnswer(Message):
    """What a child process answers with."""

    def encode(self) -> str:
        """Return it as one line of ASCII; NaN and infinities as Python's `json` has them."""
        return json.dumps(self.model_dump())

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Return what `encode` has written.

        Raises:
            ValueError: it is cut off, or no such answer.
        """
        return cls.model_validate(json.loads(content))
