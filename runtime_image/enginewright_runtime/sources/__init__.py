"""Sources of models: what opens an address of each scheme."""
# ruff: noqa: PLC0415 - each source's libraries are imported with it

from pathlib import Path
from urllib.parse import urlsplit

from enginewright_contract.schemes import BUCKETS, HF, OCI, SCHEMES, forms, scheme_of

from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.remote.failures import unreachable
from enginewright_runtime.sources.base import ModelSource
from enginewright_runtime.sources.claim import ClaimSource


def open_source(
    uri: str, mount: Path, credentials: Path, *, anonymous: bool = False
) -> ModelSource:
    """Return the source at `uri`, without connecting to it; raises StageFailure: SourceUnreachable.

    `mount` is the mount path of the claim in a pvc:// address, `credentials` a folder with the Secret's keys, if it
    exists; `anonymous` does not use the pod's identity without a Secret.
    """
    scheme = scheme_of(uri)
    if scheme is not None and scheme.is_mounted:
        claim, _, path = uri.removeprefix(scheme.prefix).partition("/")
        return ClaimSource(mount, claim, path)
    if scheme is None or not _has_location(uri):
        raise unreachable(
            f"the source {_without_account(uri)!r} is not a supported address",
            f"write {forms(reversed(SCHEMES))}",
        )
    # imported on demand: each is slow to load, and volumes need none
    secret = Secret.read(credentials)
    if scheme in BUCKETS:
        from enginewright_runtime.sources.objects import ObjectSource

        return ObjectSource(uri, secret, anonymous=anonymous)
    if scheme is HF:
        from enginewright_runtime.sources.hub import HubSource

        return HubSource(uri, secret)
    if scheme is OCI:
        from enginewright_runtime.sources.registry import RegistrySource

        return RegistrySource(uri, secret)
    from enginewright_runtime.sources.http import HttpSource

    return HttpSource(uri, secret)


def _has_location(uri: str) -> bool:
    # other schemes may have colons that do not precede a port
    if not uri.startswith(("http:", "https:")):
        return bool(uri.partition("://")[2].strip("/"))
    try:
        parts = urlsplit(uri)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        return False


def _without_account(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2] if '@' in rest else rest}"
