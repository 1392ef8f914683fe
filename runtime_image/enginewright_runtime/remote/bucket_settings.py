"""Checks a bucket's name and settings, on some of which the client would panic; raises StageFailure: SourceUnreachable.

A value may contain a secret, so messages name only its `setting`.
"""

import re
from typing import Final
from urllib.parse import urlsplit

from enginewright_contract.schemes import Scheme

from enginewright_runtime.remote.failures import unreachable

_PRINTABLE: Final = re.compile(r"[!-~]+")
_HEADER: Final = re.compile(r"[ -~]+")
_ACCOUNT: Final = re.compile(r"[A-Za-z0-9-]{1,63}")
_REGION: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_BUCKET: Final = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{0,254}")  # $root and $web are Azure's


def check_bucket(scheme: Scheme, name: str) -> None:
    """Check the name of a bucket or container."""
    if not _BUCKET.fullmatch(name):
        raise unreachable(
            f"the address names a {scheme.bucket} that no store can have",
            f"write {scheme.form}, with letters, digits, '.', '_' and '-' in {scheme.bucket.upper()}",
        )


def check_text(setting: str, value: str) -> None:
    """Check that a header can carry a key or token."""
    if not _HEADER.fullmatch(value):
        raise unreachable(
            f"{setting} has line breaks or other invalid characters", "write it again without them"
        )


def check_region(setting: str, value: str) -> None:
    """Check the name of a region."""
    if not _REGION.fullmatch(value):
        raise unreachable(f"{setting} is no region", "write it as eu-central-1")


def check_account(setting: str, value: str) -> None:
    """Check the name of a storage account."""
    if not _ACCOUNT.fullmatch(value):
        raise unreachable(
            f"{setting} is no name of a storage account", "write only letters, digits and '-'"
        )


def check_endpoint(setting: str, value: str) -> None:
    """Check the address of a server."""
    if problem := _endpoint_problem(value):
        raise unreachable(f"{setting} {problem}", "write it as https://HOST or http://HOST:PORT")


def _endpoint_problem(value: str) -> str | None:
    if not _PRINTABLE.fullmatch(value):
        return "has spaces, line breaks or other characters that an address cannot have"
    if not value.startswith(("http://", "https://")):
        return "does not begin with http:// or https://"
    if "@" in value:
        return "contains a user or a password, which belong into the keys of the Secret"
    if "?" in value or "#" in value:
        return "has a query or a fragment"
    return None if _has_server(value) else "has no valid host and port"


def _has_server(value: str) -> bool:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        return False
    is_host = _HOST.fullmatch(parts.hostname or "") is not None
    return is_host and port != 0 and not parts.netloc.endswith(":")
