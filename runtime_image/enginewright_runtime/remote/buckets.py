"""Opens buckets: resolves addresses and credentials.

Credentials are taken from the first of: the keys of the Secret; the pod's environment as set by the
platform (IRSA and EKS Pod Identity, Azure workload identity, GOOGLE_APPLICATION_CREDENTIALS); the
node's metadata service (EC2 roles, GKE workload identity, Azure managed identities). Without any,
requests are anonymous, which public buckets allow. So are those for a source whose Secret or address names
the server: a user of the namespace has chosen that, who would get the token of the pod's own identity.
"""

import os
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from enginewright_contract.schemes import BUCKETS, Scheme, forms, scheme_of

from enginewright_runtime.remote.bucket_schemes import BUCKET_SCHEMES, BucketScheme
from enginewright_runtime.remote.bucket_settings import check_bucket
from enginewright_runtime.remote.credentials import AUTHORITY, Secret
from enginewright_runtime.remote.failures import unreachable

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

    from enginewright_runtime.remote.bucket_schemes import Store

_METADATA_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Bucket:
    """An address in an object store, with its credentials; `repr` shows no secrets."""

    scheme: Scheme
    name: str
    path: str  # of the file or folder in it, without / at the ends
    identity: str  # secret | environment | metadata | withheld | anonymous
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    authority: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """Return the address."""
        return f"{self.scheme.prefix}{self.name}/{self.path}"

    def anonymous(self) -> "Bucket":
        """Return the same bucket with anonymous access."""
        kept = {key: value for key, value in self.settings.items() if key in _NO_CREDENTIALS}
        return replace(self, identity="anonymous", settings={**kept, "skip_signature": True})

    def in_region(self, region: str) -> "Bucket":
        """Return the same bucket in another region of S3."""
        return replace(self, settings={**self.settings, "region": region})

    def open(self, retries: int = 0, proxy: str | None = None) -> "Store":
        """Return the store, reached by a `proxy`, without connecting to it; raises obstore's exceptions for invalid settings."""
        endpoint = str(self.settings.get("endpoint") or self.settings.get("base_url") or "")
        client: ClientConfig = {
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": "15s",
            "read_timeout": "30s",
            "timeout": "30days",  # of a complete download: read_timeout ends stalls
            "user_agent": "enginewright",
        }
        if proxy:
            client["proxy_url"] = proxy
        if self.authority:
            client["root_certificate"] = self.authority
        retry: RetryConfig = {"max_retries": retries, "retry_timeout": timedelta(minutes=2)}
        kind = BUCKET_SCHEMES[self.scheme]
        with _without_variables(kind.environment if self.identity == "secret" else ()):
            return kind.store(self.name, client_options=client, retry_config=retry, **self.settings)


_UNSIGNED: Final = frozenset({"withheld", "anonymous"})
_NO_CREDENTIALS: Final = frozenset(
    {"region", "endpoint", "base_url", "account_name", "virtual_hosted_style_request"}
)


def bucket(uri: str, secret: Secret, *, anonymous: bool = False, of_source: bool = False) -> Bucket:
    """Return the bucket at `uri`, as the Secret's identity, else the pod's; raises SourceUnreachable.

    The pod's identity is not used if `anonymous`, nor that of a source for a server that its Secret or `uri` names.
    """
    scheme = scheme_of(uri)
    kind = BUCKET_SCHEMES.get(scheme) if scheme else None
    if scheme is None or kind is None:
        raise unreachable("the address is not that of a bucket", f"write {forms(BUCKETS)}")
    name, _, path = uri.removeprefix(scheme.prefix).partition("/")
    place = kind.locate(name, path, secret)
    if not place.name:
        raise unreachable(f"{uri} names no {scheme.bucket}", f"write {scheme.form}")
    check_bucket(scheme, place.name)
    if secret.get(AUTHORITY):
        secret.trust()
    if place.has_credentials:
        identity = "secret"
    elif of_source and place.names_server:
        identity = "withheld"
    else:
        identity = "anonymous" if anonymous else _identity(kind)
    opened = Bucket(
        scheme, place.name, place.path.strip("/"), identity, place.settings, secret.get(AUTHORITY)
    )
    return replace(opened.anonymous(), identity=identity) if identity in _UNSIGNED else opened


@contextmanager
def _without_variables(names: Collection[str]) -> Iterator[None]:
    """Hide variables, some of which a client prefers to the credentials that it is given."""
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _identity(kind: BucketScheme) -> str:
    if any(os.environ.get(name) for name in kind.environment):
        return "environment"
    address = os.environ.get(kind.metadata_variable) or kind.metadata
    return "metadata" if _accepts(address) else "anonymous"


def _accepts(address: str) -> bool:
    """Return whether the address accepts connections, as a metadata service does."""
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        with socket.create_connection((parts.hostname, parts.port or 80), _METADATA_SECONDS):
            return True
    except (OSError, ValueError):
        return False
