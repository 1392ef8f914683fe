"""Where models lie: one module a kind of address."""

from pathlib import Path
from urllib.parse import urlsplit

from enginewright_runtime.sources.base import ModelSource, unreachable
from enginewright_runtime.sources.claim import ClaimSource
from enginewright_runtime.sources.credentials import Secret


def open_source(uri: str, mount: Path, credentials: Path) -> ModelSource:
    """Return the source that `uri` names; nothing is asked of it yet.

    Args:
        uri: pvc://CLAIM/PATH, http(s)://, s3://, gs://, az://, hf:// or oci://.
        mount: where the claim of a pvc:// address is mounted.
        credentials: folder with one file a key of the Secret; it need not exist.

    Raises:
        StageFailure: SourceUnreachable, for an address or a Secret that cannot be.
    """
    scheme, separator, rest = uri.partition("://")
    if scheme == "pvc" and separator:
        claim, _, path = rest.partition("/")
        return ClaimSource(mount, claim, path)
    if not _names_a_place(uri) or scheme not in {"http", "https", "s3", "gs", "az", "hf", "oci"}:
        raise unreachable(
            f"the source {_without_account(uri)!r} is no address that can be read",
            "write pvc://CLAIM/PATH, https://HOST/PATH, s3://BUCKET/PATH, gs://BUCKET/PATH,"
            " az://CONTAINER/PATH, hf://ORG/REPO/PATH or oci://REGISTRY/REPOSITORY:TAG",
        )
    if scheme in {"http", "https"} and "@" in urlsplit(uri).netloc:
        raise unreachable(
            "the address of the source holds a user name",
            "put it into the Secret in spec.source.secretRef, keys username and password",
        )
    return _network(scheme, uri, Secret.read(credentials))


def _network(scheme: str, uri: str, secret: Secret) -> ModelSource:
    # imported where they are needed: each is slow to load, and a volume needs none
    match scheme:
        case "s3" | "gs" | "az":
            from enginewright_runtime.sources.objects import ObjectSource  # noqa: PLC0415 - above

            return ObjectSource(uri, secret)
        case "hf":
            from enginewright_runtime.sources.hub import HubSource  # noqa: PLC0415 - above

            return HubSource(uri, secret)
        case "oci":
            from enginewright_runtime.sources.registry import RegistrySource  # noqa: PLC0415 - above

            return RegistrySource(uri, secret)
        case _:
            from enginewright_runtime.sources.http import HttpSource  # noqa: PLC0415 - above

            return HttpSource(uri, secret)


def _names_a_place(uri: str) -> bool:
    if not uri.startswith(("http:", "https:")):  # in others, a colon is no port
        return bool(uri.partition("://")[2].strip("/"))
    try:
        parts = urlsplit(uri)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        return False


def _without_account(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2] if '@' in rest else rest}"
