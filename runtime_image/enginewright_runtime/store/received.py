"""What was read of an object, and how the rest is asked for."""

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from obstore import GetOptions


@dataclass
class Received:
    """What was read of an object so far."""

    writer: BinaryIO | None
    size: int = 0  # bytes
    etag: str | None = None
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def options(self) -> "GetOptions":
        """Return how to ask for the rest; start over if that is not possible."""
        if self.size and self.etag:
            return {"range": {"offset": self.size}, "if_match": self.etag}
        if self.writer is not None:
            self.writer.seek(0)
            self.writer.truncate()
        self.size, self.digest = 0, hashlib.sha256()
        return {}

    def add(self, chunk: bytes) -> None:
        """Write a chunk."""
        if self.writer is not None:
            self.writer.write(chunk)
        self.digest.update(chunk)
        self.size += len(chunk)
