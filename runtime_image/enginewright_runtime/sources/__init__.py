"""Sources of models: what opens an address of each scheme."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from enginewright_contract.schemes import (
    BUCKETS,
    HF,
    HTTP,
    HTTPS,
    OCI,
    SCHEMES,
    Scheme,
    forms,
    scheme_of,
)

from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.remote.failures import unreachable
from enginewright_runtime.sources.base import ModelSource
from enginewright_runtime.sources.claim import ClaimSource


class _Address(NamedTuple):
    uri: str
    secret: Secret
    anonymous: bool


def open_source(
    uri: str, mount: Path, credentials: Path, *, anonymous: bool = False
) -> ModelSource:
    """Return the source at `uri`, without connecting to it.

    Args:
        uri: of one of `SCHEMES`.
        mount: the mount path of the claim in a pvc:// address.
        credentials: folder with one file per key of the Secret; it need not exist.
        anonymous: whether without a Secret nobody's identity is used instead of the pod's.

    Raises:
        StageFailure: SourceUnreachable, for an invalid address or Secret.
    """
    scheme = scheme_of(uri)
    if scheme is not None and scheme.is_mounted:
        claim, _, path = uri.removeprefix(scheme.prefix).partition("/")
        return ClaimSource(mount, claim, path)
    if scheme is None or not _has_location(uri):
        raise unreachable(
            f"the source {_without_account(uri)!r} is no address that can be read",
            f"write {forms(reversed(SCHEMES))}",
        )
    return _OPENED_BY[scheme](_Address(uri, Secret.read(credentials), anonymous))


# imported on demand: each is slow to load, and volumes need none


def _web(address: _Address) -> ModelSource:
    from enginewright_runtime.sources.http import HttpSource  # noqa: PLC0415 - above

    return HttpSource(address.uri, address.secret)


def _bucket(address: _Address) -> ModelSource:
    from enginewright_runtime.sources.objects import ObjectSource  # noqa: PLC0415 - above

    return ObjectSource(address.uri, address.secret, anonymous=address.anonymous)


def _hub(address: _Address) -> ModelSource:
    from enginewright_runtime.sources.hub import HubSource  # noqa: PLC0415 - above

    return HubSource(address.uri, address.secret)


def _registry(address: _Address) -> ModelSource:
    from enginewright_runtime.sources.registry import RegistrySource  # noqa: PLC0415 - above

    return RegistrySource(address.uri, address.secret)


_OPENED_BY: Final[Mapping[Scheme, Callable[[_Address], ModelSource]]] = {
    HTTPS: _web,
    HTTP: _web,
    HF: _hub,
    OCI: _registry,
    **dict.fromkeys(BUCKETS, _bucket),
}


def _has_location(uri: str) -> bool:
    if not uri.startswith(
        ("http:", "https:")
    ):  # other schemes may have colons that do not precede a port
        return bool(uri.partition("://")[2].strip("/"))
    try:
        parts = urlsplit(uri)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        return False


def _without_account(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2] if '@' in rest else rest}"
