"""The bearer tokens of clients, from the Secret of spec.serving.auth: a key is a client, its value its tokens.

Neither messages nor the objects kept for comparison contain a token.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(rb"[A-Za-z0-9\-._~+/]+=*")  # RFC 6750 2.1
_SCHEME: Final = b"bearer"


@dataclass(frozen=True, slots=True)
class TokenSet:
    """The tokens of a Secret: of each its sha256, so that finding one reveals nothing by its time."""

    clients: Mapping[bytes, str]  # names by digest
    problems: tuple[str, ...]  # values that are not tokens, for the Secret's owner

    def client(self, authorization: bytes) -> str | None:
        """Return the client whose token the value of an Authorization header has, if there is one."""
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != _SCHEME:
            return None
        return self.clients.get(hashlib.sha256(token.strip()).digest())


NO_TOKENS: Final = TokenSet({}, ())


def read_tokens(secret: Mapping[str, bytes]) -> TokenSet:
    """Read the values of a Secret by its keys: one token per line, around which spaces do not count."""
    clients: dict[bytes, str] = {}
    problems: list[str] = []
    for name, value in sorted(secret.items()):
        lines = _lines(value)
        tokens = [line for line in lines if _TOKEN.fullmatch(line)]
        clients |= {hashlib.sha256(token).digest(): name for token in tokens}
        if not lines:
            problems.append(f"key {name!r} is empty")
        elif len(tokens) < len(lines):
            problems.append(f"key {name!r} has a line that is no bearer token")
    return TokenSet(clients, tuple(problems))


def copies_token(secret: Mapping[str, bytes], revision: str) -> str:
    """Return the token for copies of requests to pods of `revision` with the same Secret, which has no client's token."""
    lines = sorted(line for value in secret.values() for line in _lines(value))
    if not lines:
        return ""
    return hmac.new(b"\n".join(lines), f"copies for {revision}".encode(), "sha256").hexdigest()


def _lines(value: bytes) -> list[bytes]:
    return [line.strip() for line in value.splitlines() if line.strip()]
