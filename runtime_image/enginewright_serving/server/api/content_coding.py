"""The compression of requests and responses: Content-Encoding and Accept-Encoding (RFC 9110, 8.4 and 12.5.3). Pure."""

import re
from functools import lru_cache
from typing import Final

from enginewright_serving.transport.compression import Coding

SUPPORTED: Final = {
    b"gzip": Coding.GZIP,
    b"x-gzip": Coding.GZIP,  # the same (RFC 9110 8.4.1.3)
    b"deflate": Coding.DEFLATE,
}
ACCEPTED: Final = b"Accept-Encoding: gzip, deflate\r\n"
NAMES: Final = {Coding.GZIP: b"gzip", Coding.DEFLATE: b"deflate"}

_ELEMENT: Final = re.compile(
    rb"[ \t]*([!#$%&'*+.^_`|~0-9a-z-]+)"
    rb"(?:[ \t]*;[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?))?[ \t]*"
)
_LONGEST: Final = 1024  # bytes: reading a whole head of elements would take milliseconds
_CACHED: Final = 64  # values of the header


@lru_cache(_CACHED)
def choose_coding(value: bytes) -> Coding | None:
    """Return the coding to which an Accept-Encoding gives the highest weight, gzip of equal ones, as Triton does.

    None if the client accepts neither, or prefers uncompressed responses. Invalid elements count as absent, as
    does a long header.
    """
    weights: dict[bytes, float] = {}
    if len(value) > _LONGEST:
        return None
    for element in value.lower().split(b","):
        if match := _ELEMENT.fullmatch(element):
            name = b"gzip" if match[1] == b"x-gzip" else match[1]
            weights[name] = 1.0 if match[2] is None else float(match[2])
    other = weights.get(b"*", 0.0)
    gzip, deflate = weights.get(b"gzip", other), weights.get(b"deflate", other)
    coding, weight = (Coding.DEFLATE, deflate) if deflate > gzip else (Coding.GZIP, gzip)
    return coding if weight and weight >= weights.get(b"identity", 0.0) else None
