"""A digest of our own code: a version number does not distinguish states of development."""

import hashlib
import io
import os
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_INDENTATION: Final = {tokenize.INDENT, tokenize.DEDENT}
_ENDS: Final = {tokenize.NEWLINE, tokenize.ENDMARKER}


def code_digest(*folders: Path, documents: bool = True) -> str:
    """Return the sha256 (hex) of the modules below folders; excluding `documents` takes ten times as long."""
    digest = hashlib.sha256()
    for folder in folders:
        digest.update(b"\0")
        for name in sorted(_modules(str(folder))):
            content = (folder / name).read_bytes()
            digest.update(name.encode() + b"\0")
            digest.update(
                hashlib.sha256(content if documents else _strip_documents(content)).digest()
            )
    return digest.hexdigest()


def _strip_documents(content: bytes) -> bytes:
    """Return a module (UTF-8) without comments, docstrings and blank lines between statements.

    The rest is as written, for any version of Python. Raises SyntaxError and tokenize.TokenError.
    """
    text = content.decode()
    lines = ["", *text.split("\n")]  # tokens count lines from 1
    left_out = {0}
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        row, column = token.start
        if token.type == tokenize.COMMENT:
            lines[row] = lines[row][:column].rstrip()
            if not lines[row]:
                left_out.add(row)
        elif token.type == tokenize.NL:
            if not statement:
                left_out.add(row)
        elif token.type in _ENDS:
            if statement and all(map(_is_text, statement)):
                left_out.update(range(statement[0].start[0], statement[-1].end[0] + 1))
            statement = []
        elif token.type not in _INDENTATION:
            statement.append(token)
    return "\n".join(line for row, line in enumerate(lines) if row not in left_out).encode()


def _is_text(token: tokenize.TokenInfo) -> bool:
    """Return whether a token is a string literal without expressions: such statements do nothing."""
    prefix = token.string.partition(token.string[-1])[0]
    return token.type == tokenize.STRING and "f" not in prefix.lower()


def _modules(folder: str, inside: str = "") -> Iterator[str]:
    """Yield the modules below a folder; `pathlib` would make every start three times as slow."""
    with os.scandir(f"{folder}/{inside}") as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _modules(folder, f"{inside}{entry.name}/")
            elif entry.name.endswith(".py"):
                yield inside + entry.name
