"""Hides secrets in texts for people: the accounts and queries of addresses."""

import re
from typing import Final

# hf://REPO@REVISION has no account, unless there is a colon
_ACCOUNT: Final = re.compile(r"(://)(?:(?<!hf://)|[^/\s\"'?:@]*:)[^/\s\"'?]*@", re.IGNORECASE)
_TOKEN: Final = re.compile(r"[^\s\"']+")  # matched in linear time, since models contain any text
# of object stores, whose keys may contain a ?, which elsewhere begins the query
_KEYED: Final = re.compile(r"\b(s3|gs|hf)://", re.IGNORECASE)
_SECRET: Final = re.compile(r"sig|token|credential|secret|password", re.IGNORECASE)


def mask(text: str) -> str:
    """Return a text without the accounts and queries of its URLs, which may contain secrets."""
    return _TOKEN.sub(_mask, _ACCOUNT.sub(r"\1", text)) if "://" in text else text


def _mask(token: re.Match[str]) -> str:
    address, _, query = token[0].partition("?")
    is_query = "=" in query and (not _KEYED.search(address) or _SECRET.search(query))
    if "://" not in address or not is_query:
        return token[0]
    return f"{address}?…{query[len(query.rstrip('.,;:)')) :]}"
