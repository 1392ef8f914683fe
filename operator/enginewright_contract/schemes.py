"""What the operator, the Jobs and the command line know of each scheme of addresses, in one row a scheme.

How the runtime reads an address is keyed by these rows: `sources` for models and data, `remote.bucket_schemes` for buckets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple


class AddressRule(NamedTuple):
    """What must hold for an address."""

    cel: str
    remedy: str  # what to write instead


@dataclass(frozen=True, eq=False)
class Scheme:
    """One scheme of addresses."""

    name: str  # before ://
    form: str  # of its addresses, for messages
    keys: str = ""  # of the Secret with the credentials, for messages
    variables: str = ""  # of the environment, with the same, for messages of the command line
    # names of all variables that credentials and endpoints are taken from begin so
    variable_prefixes: tuple[str, ...] = ()
    is_bucket: bool = False  # models, data and the store may be in it
    bucket: str = "bucket"  # as its provider calls one
    is_mounted: bool = False  # a volume of the pod instead of a server
    # credentials are the provider's, for all its buckets or repositories; else they are one host's
    is_provider_wide: bool = False
    # labels with which the cloud gives a pod the identity of its service account
    identity_labels: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[AddressRule, ...] = ()  # on an address in a spec

    @property
    def prefix(self) -> str:
        """Return what every address begins with."""
        return f"{self.name}://"


_HTTP_KEYS: Final = "token, or username and password"

HTTPS: Final = Scheme(
    name="https",
    form="https://HOST/PATH",
    keys=_HTTP_KEYS,
)
HTTP: Final = Scheme(name="http", form="http://HOST/PATH", keys=_HTTP_KEYS)
S3: Final = Scheme(
    name="s3",
    form="s3://BUCKET/PATH",
    keys="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    variables="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    variable_prefixes=("AWS_",),
    is_bucket=True,
    is_provider_wide=True,
)
GS: Final = Scheme(
    name="gs",
    form="gs://BUCKET/PATH",
    keys="service-account.json",
    variables="GOOGLE_APPLICATION_CREDENTIALS",
    variable_prefixes=("GCE_", "GOOGLE_"),
    is_bucket=True,
    is_provider_wide=True,
)
AZ: Final = Scheme(
    name="az",
    form="az://CONTAINER/PATH",
    bucket="container",
    keys="AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN,"
    " or AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET",
    variables="AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    variable_prefixes=("AZURE_",),
    is_bucket=True,
    is_provider_wide=True,
    identity_labels={"azure.workload.identity/use": "true"},
)
HF: Final = Scheme(
    name="hf",
    form="hf://ORG/REPO/PATH",
    keys="HF_TOKEN",
    variable_prefixes=("HF_",),
    is_provider_wide=True,
)
OCI: Final = Scheme(
    name="oci",
    form="oci://REGISTRY/REPOSITORY:TAG",
    keys="username and password, or a Secret of type kubernetes.io/dockerconfigjson",
)
PVC: Final = Scheme(
    name="pvc",
    form="pvc://CLAIM/PATH",
    is_mounted=True,
    rules=(
        AddressRule(
            "!self.startsWith('pvc://') || self.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[^/].*$')",
            "write pvc://CLAIM/PATH: the name of a PersistentVolumeClaim in this namespace and the path"
            " of the file inside it",
        ),
        AddressRule(
            "!self.startsWith('pvc://') || !self.matches('/[.][.](/|$)')",
            "write the path of the file inside the claim without '..'",
        ),
    ),
)

SCHEMES: Final = (HTTPS, HTTP, S3, GS, AZ, HF, OCI, PVC)
BUCKETS: Final = tuple(scheme for scheme in SCHEMES if scheme.is_bucket)
_BY_NAME: Final = {scheme.name: scheme for scheme in SCHEMES}


def scheme_of(uri: str) -> Scheme | None:
    """Return the scheme of an address, or None if it has none of these."""
    name, separator, _ = uri.partition("://")
    return _BY_NAME.get(name) if separator else None


def forms(schemes: Iterable[Scheme]) -> str:
    """Return the forms of addresses, as an enumeration for messages."""
    *first, last = (scheme.form for scheme in schemes)
    return f"{', '.join(first)} or {last}" if first else last


def secret_keys() -> str:
    """Return the keys of credentials, as an enumeration for descriptions of fields."""
    names: dict[str, list[str]] = {}
    for scheme in SCHEMES:
        if scheme.keys:
            names.setdefault(scheme.keys, []).append(scheme.name)
    return "; ".join(f"{keys} for {' and '.join(used)}" for keys, used in names.items())
