"""Sources of models: one module per URI scheme."""

from pathlib import Path
from urllib.parse import urlsplit

from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.remote.failures import unreachable
from enginewright_runtime.sources.base import ModelSource
from enginewright_runtime.sources.claim import ClaimSource


def open_source(
    uri: str, mount: Path, credentials: Path, *, anonymous: bool = False
) -> ModelSource:
    """Return the source at `uri`, without connecting to it.

    Args:
        uri: pvc://CLAIM/PATH, http(s)://, s3://, gs://, az://, hf:// or oci://.
        mount: the mount path of the claim in a pvc:// address.
        credentials: folder with one file per key of the Secret; it need not exist.
        anonymous: whether without a Secret nobody's identity is used instead of the pod's.

    Raises:
        StageFailure: SourceUnreachable, for an invalid address or Secret.
    """
    scheme, separator, rest = uri.partition("://")
    if scheme == "pvc" and separator:
        claim, _, path = rest.partition("/")
        return ClaimSource(mount, claim, path)
    if not _has_location(uri) or scheme not in {"http", "https", "s3", "gs", "az", "hf", "oci"}:
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
    return _network(scheme, uri, Secret.read(credentials), anonymous=anonymous)


def _network(scheme: str, uri: str, secret: Secret, *, anonymous: bool) -> ModelSource:
    # imported on demand: each is slow to load, and volumes need none
    match scheme:
        case "s3" | "gs" | "az":
            from enginewright_runtime.sources.objects import ObjectSource  # noqa: PLC0415 - above

            return ObjectSource(uri, secret, anonymous=anonymous)
        case "hf":
            from enginewright_runtime.sources.hub import HubSource  # noqa: PLC0415 - above

            return HubSource(uri, secret)
        case "oci":
            from enginewright_runtime.sources.registry import RegistrySource  # noqa: PLC0415 - above

            return RegistrySource(uri, secret)
        case _:
            from enginewright_runtime.sources.http import HttpSource  # noqa: PLC0415 - above

            return HttpSource(uri, secret)


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
