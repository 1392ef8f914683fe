"""What HTTP requests say about compression: Content-Encoding and Accept-Encoding (RFC 9110, 8.4 and 12.5.3). Pure.

Many clients send Accept-Encoding by default, and are in the same cluster. There compression never pays:
with zlib's fastest level JSON arrives sooner below about 400 Mbit/s, tensors of floats below 30 Mbit/s.
So a response is compressed for clients that show that they want it.
"""

import enum
import re
from functools import lru_cache
from typing import Final, NamedTuple

from enginewright_runtime.serve.server.compression import Coding

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


class Wish(enum.IntEnum):
    """How much a client wants its response compressed."""

    NEVER = 0
    ACCEPTED = 1  # as many clients say that never think of it
    WANTED = 2  # it asks for nothing else, or prefers it to an uncompressed response
    REQUIRED = 3  # it refuses uncompressed ones


class AcceptedCoding(NamedTuple):
    """What to compress a response with, if it is compressed."""

    coding: Coding
    wish: Wish


@lru_cache(_CACHED)
def accepted_coding(value: bytes) -> AcceptedCoding:
    """Read an Accept-Encoding, of which elements that are not valid count as absent, as does a long one."""
    weights: dict[bytes, float] = {}
    if len(value) > _LONGEST:
        return AcceptedCoding(Coding.GZIP, Wish.NEVER)
    for element in value.lower().split(b","):
        if found := _ELEMENT.fullmatch(element):
            name = b"gzip" if found[1] == b"x-gzip" else found[1]
            weights[name] = 1.0 if found[2] is None else float(found[2])
    other = weights.get(b"*", 0.0)
    gzip, deflate = weights.get(b"gzip", other), weights.get(b"deflate", other)
    coding, weight = (Coding.DEFLATE, deflate) if deflate > gzip else (Coding.GZIP, gzip)
    if not weight:
        return AcceptedCoding(coding, Wish.NEVER)
    plain = weights.get(b"identity")
    if plain is None:
        # acceptable unless excluded, but without a weight that could be compared
        if weights.get(b"*") == 0.0:
            wish = Wish.REQUIRED
        else:
            wish = Wish.WANTED if [*weights] == [NAMES[coding]] else Wish.ACCEPTED
    elif not plain:
        wish = Wish.REQUIRED
    elif plain < weight:
        wish = Wish.WANTED
    else:
        wish = Wish.ACCEPTED if plain == weight else Wish.NEVER
    return AcceptedCoding(coding, wish)
