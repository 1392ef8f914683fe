"""Objects in a tenth of their memory: as JSON that is compressed against others of their kind, and parsed on demand.

Thousands of objects of one kind differ in names, keys and times. As Python objects they would take most of the
operator's memory, although few of them are read at a time.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from enginewright.kube.api import JsonObject

_LEVEL: Final = 3
_WINDOW: Final = 32768  # bytes that deflate can refer back to
_WELL_PACKED: Final = 8  # times smaller: less shows that the dictionary has nothing like it


@dataclass(slots=True)
class Packed:
    """One object, without its resource version."""

    version: str
    content: bytes = b""  # empty: it is to be packed yet
    dictionary: bytes = b""

    def unpack(self) -> JsonObject:
        """Return the object."""
        inflater = zlib.decompressobj(-zlib.MAX_WBITS, zdict=self.dictionary)
        obj: JsonObject = json.loads(inflater.decompress(self.content))
        if self.version:
            obj["metadata"]["resourceVersion"] = self.version
        return obj


class Packer:
    """Packs objects of one kind; its dictionary grows by those that are unlike it, up to deflate's window."""

    def __init__(self) -> None:
        self._dictionary = b""

    def pack(self, obj: Mapping[str, Any], version: str) -> Packed:
        """Return an object, which is given without its resource version, packed."""
        text = json.dumps(obj, separators=(",", ":"), check_circular=False).encode()
        packed = self._compress(text)
        if len(packed) * _WELL_PACKED > len(text) and len(self._dictionary) < _WINDOW:
            self._dictionary = (self._dictionary + text)[-_WINDOW:]
            packed = self._compress(text)
        return Packed(version, packed, self._dictionary)

    def _compress(self, text: bytes) -> bytes:
        deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=self._dictionary)
        return deflater.compress(text) + deflater.flush()
