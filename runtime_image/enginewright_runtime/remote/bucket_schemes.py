"""How the buckets of each scheme are opened: client, credentials of a Secret, and the pod's own identity."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from enginewright_contract.schemes import AZ, GS, S3, Scheme
from obstore.store import AzureStore, GCSStore, S3Store

from enginewright_runtime.remote.bucket_settings import (
    check_account,
    check_endpoint,
    check_region,
    check_text,
)
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.remote.failures import unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    Store = AzureStore | GCSStore | S3Store

_S3_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_S3_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_AZURE: Final = (  # Microsoft's servers alone have names that end so
    ".core.windows.net",
    ".storage.azure.net",
    ".core.usgovcloudapi.net",
    ".core.chinacloudapi.cn",
)


@dataclass(frozen=True)
class Location:
    """A bucket, what is in it, and the settings of its client."""

    name: str
    path: str
    settings: dict[str, Any]
    has_credentials: bool  # the Secret has some
    names_server: bool  # the Secret or the address does, which may be anybody's


@dataclass(frozen=True)
class BucketScheme:
    """One scheme of buckets."""

    store: "Callable[..., Store]"
    # raises StageFailure, SourceUnreachable, for an invalid setting or Secret
    locate: "Callable[[str, str, Secret], Location]"
    metadata_variable: str  # overrides the address of the node's metadata service
    metadata: str  # that address
    # variables; any of them means that the platform set an identity
    environment: tuple[str, ...]


def _s3(name: str, path: str, secret: Secret) -> Location:
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
    names_server = secret.get(*_S3_ENDPOINTS) is not None
    return Location(name, path, settings, "access_key_id" in settings, names_server)


def _gs(name: str, path: str, secret: Secret) -> Location:
    secret.one_of(("service-account.json",), also=("GOOGLE_BASE_URL",))
    settings: dict[str, Any] = {}
    if key := secret.get("service-account.json"):
        settings["service_account_key"] = key
    if endpoint := _setting(secret, "GOOGLE_BASE_URL", check=check_endpoint):
        settings["base_url"] = endpoint.rstrip("/")
    names_server = secret.get("GOOGLE_BASE_URL") is not None
    return Location(name, path, settings, "service_account_key" in settings, names_server)


def _az(name: str, path: str, secret: Secret) -> Location:
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
    has_credentials = bool(settings)
    if account := _setting(secret, "AZURE_STORAGE_ACCOUNT_NAME", check=check_account):
        settings["account_name"] = account
    if endpoint := _setting(secret, "AZURE_STORAGE_ENDPOINT", check=check_endpoint):
        settings["endpoint"] = endpoint.rstrip("/")
    names_server = secret.get("AZURE_STORAGE_ENDPOINT") is not None
    if "." in name:  # ACCOUNT.blob.core.windows.net/CONTAINER/PATH
        check_endpoint("the storage account in the address", f"https://{name}")
        settings |= {"account_name": name.partition(".")[0], "endpoint": f"https://{name}"}
        names_server = not name.endswith(_AZURE)
        name, _, path = path.partition("/")
    if not settings.get("account_name"):
        raise unreachable(
            f"{AZ.prefix}{name}/{path} does not name the storage account of the container",
            "write az://ACCOUNT.blob.core.windows.net/CONTAINER/PATH, or put"
            " AZURE_STORAGE_ACCOUNT_NAME into the Secret in secretRef; on the command line, into"
            " the environment",
        )
    return Location(name, path, settings, has_credentials, names_server)


def _setting(secret: Secret, *keys: str, check: "Callable[[str, str], None]") -> str | None:
    for values, kind in (
        (secret.values, "key {} of the Secret"),
        (os.environ, "environment variable {}"),
    ):
        for key in keys:
            if value := values.get(key):
                check(f"the {kind.format(key)}", value)
                return value
    return None


def _credential(secret: Secret, key: str) -> str | None:
    if value := secret.get(key):
        check_text(f"the key {key} of the Secret", value)
    return value


BUCKET_SCHEMES: "Final[dict[Scheme, BucketScheme]]" = {
    S3: BucketScheme(
        store=S3Store,
        locate=_s3,
        metadata_variable="AWS_METADATA_ENDPOINT",
        metadata="http://169.254.169.254",
        environment=(
            "AWS_ACCESS_KEY_ID",
            "AWS_SESSION_TOKEN",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        ),
    ),
    GS: BucketScheme(
        store=GCSStore,
        locate=_gs,
        metadata_variable="GCE_METADATA_HOST",
        metadata="metadata.google.internal",
        environment=("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"),
    ),
    AZ: BucketScheme(
        store=AzureStore,
        locate=_az,
        metadata_variable="AZURE_MSI_ENDPOINT",
        metadata="http://169.254.169.254",
        environment=(
            "AZURE_FEDERATED_TOKEN_FILE",
            "AZURE_STORAGE_ACCOUNT_KEY",
            "AZURE_STORAGE_SAS_TOKEN",
            "AZURE_CLIENT_SECRET",
        ),
    ),
}
