"""Opens buckets of s3://, gs:// and az://: resolves addresses and credentials.

Credentials are taken from the first of: the keys of the Secret; the pod's environment as set by the
platform (IRSA and EKS Pod Identity, Azure workload identity, GOOGLE_APPLICATION_CREDENTIALS); the
node's metadata service (EC2 roles, GKE workload identity, Azure managed identities). Without any,
requests are anonymous, which public buckets allow.
"""

import os
import socket
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from obstore.store import AzureStore, GCSStore, S3Store

from enginewright_runtime.remote.bucket_settings import (
    check_account,
    check_bucket,
    check_endpoint,
    check_region,
    check_text,
)
from enginewright_runtime.remote.credentials import AUTHORITY, Secret
from enginewright_runtime.remote.failures import unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from obstore.store import ClientConfig, RetryConfig

    Store = AzureStore | GCSStore | S3Store

_STORES: Final = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_METADATA_SECONDS: Final = 1.0
_METADATA: Final = {  # scheme -> the variable that overrides the address, and the default
    "s3": ("AWS_METADATA_ENDPOINT", "http://169.254.169.254"),
    "gs": ("GCE_METADATA_HOST", "metadata.google.internal"),
    "az": ("AZURE_MSI_ENDPOINT", "http://169.254.169.254"),
}
_S3_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_S3_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ENVIRONMENT: Final = {  # scheme -> variables; any of them means that the platform set an identity
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    ),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"),
    "az": (
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_CLIENT_SECRET",
    ),
}
VARIABLES: Final = {  # scheme -> the environment's, for messages of the command line
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
}
KEYS: Final = {  # scheme -> the Secret's keys, for messages
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "service-account.json",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN,"
    " or AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET",
}


@dataclass(frozen=True)
class Bucket:
    """An address in an object store, with its credentials; `repr` shows no secrets."""

    scheme: str  # s3 | gs | az
    name: str
    path: str  # of the file or folder in it, without / at the ends
    identity: str  # secret | environment | metadata | nobody
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    authority: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """Return the address."""
        return f"{self.scheme}://{self.name}/{self.path}"

    def anonymous(self) -> "Bucket":
        """Return the same bucket with anonymous access."""
        kept = {key: value for key, value in self.settings.items() if key in _NO_CREDENTIALS}
        return replace(self, identity="nobody", settings={**kept, "skip_signature": True})

    def in_region(self, region: str) -> "Bucket":
        """Return the same bucket in another region of S3."""
        return replace(self, settings={**self.settings, "region": region})

    def open(self, retries: int = 0) -> "Store":
        """Return the store, without connecting to it.

        Args:
            retries: of each request that the store may be sent twice.

        Raises:
            Exception: obstore's, for invalid settings.
        """
        endpoint = str(self.settings.get("endpoint") or self.settings.get("base_url") or "")
        client: ClientConfig = {
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": "15s",
            "read_timeout": "30s",
            "timeout": "30days",  # of a complete download: read_timeout ends stalls
            "user_agent": "enginewright",
        }
        if self.authority:
            client["root_certificate"] = self.authority
        retry: RetryConfig = {"max_retries": retries, "retry_timeout": timedelta(minutes=2)}
        store: Store = _STORES[self.scheme](
            self.name, client_options=client, retry_config=retry, **self.settings
        )
        return store


_NO_CREDENTIALS: Final = frozenset(
    {"region", "endpoint", "base_url", "account_name", "virtual_hosted_style_request"}
)


def bucket(uri: str, secret: Secret, *, anonymous: bool = False) -> Bucket:
    """Return the bucket at `uri`, with its credentials.

    Args:
        uri: its address.
        secret: its credentials; empty: the pod's identity is used.
        anonymous: whether nobody's identity is used instead of the pod's.

    Raises:
        StageFailure: SourceUnreachable, for an invalid address, setting or Secret.
    """
    scheme, _, rest = uri.partition("://")
    name, _, path = rest.partition("/")
    match scheme:
        case "s3":
            settings, known = _s3(secret)
        case "gs":
            settings, known = _gs(secret)
        case _:
            settings, known = _az(secret)
            if "." in name:  # ACCOUNT.blob.core.windows.net/CONTAINER/PATH
                check_endpoint("the storage account in the address", f"https://{name}")
                settings |= {"account_name": name.partition(".")[0], "endpoint": f"https://{name}"}
                name, _, path = path.partition("/")
            if not settings.get("account_name"):
                raise unreachable(
                    f"{uri} does not say in which storage account the container lies",
                    "write az://ACCOUNT.blob.core.windows.net/CONTAINER/PATH, or put"
                    " AZURE_STORAGE_ACCOUNT_NAME into the Secret in secretRef; on the command line, into"
                    " the environment",
                )
    if not name:
        raise unreachable(f"{uri} names no bucket", f"write {scheme}://BUCKET/PATH")
    check_bucket(scheme, name)
    if secret.get(AUTHORITY):
        secret.trust()
    identity = "secret" if known else "nobody" if anonymous else _identity(scheme)
    found = Bucket(scheme, name, path.strip("/"), identity, settings, secret.get(AUTHORITY))
    return found.anonymous() if identity == "nobody" else found


def _s3(secret: Secret) -> tuple[dict[str, Any], bool]:
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    secret.one_of(keys, also=(*_S3_ENDPOINTS, *_S3_REGIONS))
    settings: dict[str, Any] = {}
    if all(secret.get(key) for key in keys):
        settings |= {
            "access_key_id": _credential(secret, keys[0]),
            "secret_access_key": _credential(secret, keys[1]),
        }
        if token := _credential(secret, "AWS_SESSION_TOKEN"):
            settings["session_token"] = token
    settings["region"] = _setting(secret, *_S3_REGIONS, check=check_region) or "us-east-1"
    if endpoint := _setting(secret, *_S3_ENDPOINTS, check=check_endpoint):
        settings["endpoint"] = endpoint.rstrip("/")
    return settings, "access_key_id" in settings


def _gs(secret: Secret) -> tuple[dict[str, Any], bool]:
    secret.one_of(("service-account.json",), also=("GOOGLE_BASE_URL",))
    settings: dict[str, Any] = {}
    if key := secret.get("service-account.json"):
        settings["service_account_key"] = key
    if endpoint := _setting(secret, "GOOGLE_BASE_URL", check=check_endpoint):
        settings["base_url"] = endpoint.rstrip("/")
    return settings, "service_account_key" in settings


def _az(secret: Secret) -> tuple[dict[str, Any], bool]:
    client = ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")
    choices = (("AZURE_STORAGE_ACCOUNT_KEY",), ("AZURE_STORAGE_SAS_TOKEN",), client)
    secret.one_of(*choices, also=("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT"))
    settings: dict[str, Any] = {}
    if key := _credential(secret, "AZURE_STORAGE_ACCOUNT_KEY"):
        settings["account_key"] = key
    elif token := _credential(secret, "AZURE_STORAGE_SAS_TOKEN"):
        settings["sas_key"] = token.removeprefix("?")
    elif all(secret.get(key) for key in client):
        names = ("tenant_id", "client_id", "client_secret")
        settings |= {
            name: _credential(secret, key) for name, key in zip(names, client, strict=True)
        }
    known = bool(settings)
    if account := _setting(secret, "AZURE_STORAGE_ACCOUNT_NAME", check=check_account):
        settings["account_name"] = account
    if endpoint := _setting(secret, "AZURE_STORAGE_ENDPOINT", check=check_endpoint):
        settings["endpoint"] = endpoint.rstrip("/")
    return settings, known


def _setting(secret: Secret, *keys: str, check: "Callable[[str, str], None]") -> str | None:
    """Return the value from the Secret, else from the pod's environment, once it is checked."""
    for key in keys:
        if value := secret.get(key):
            check(f"the key {key} of the Secret", value)
            return value
    for key in keys:
        if value := os.environ.get(key):
            check(f"the environment variable {key}", value)
            return value
    return None


def _credential(secret: Secret, key: str) -> str | None:
    """Return a key or token of the Secret, once it is checked."""
    if value := secret.get(key):
        check_text(f"the key {key} of the Secret", value)
    return value


def _identity(scheme: str) -> str:
    if any(os.environ.get(name) for name in _ENVIRONMENT[scheme]):
        return "environment"
    variable, address = _METADATA[scheme]
    return "metadata" if _accepts(os.environ.get(variable) or address) else "nobody"


def _accepts(address: str) -> bool:
    """Return whether the address accepts connections: without a metadata service, none does."""
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        with socket.create_connection((parts.hostname, parts.port or 80), _METADATA_SECONDS):
            return True
    except (OSError, ValueError):
        return False
