"""Every scheme that a spec may name is one that the Jobs read, with the keys that messages name."""

from pathlib import Path
from typing import Final

import pytest
from enginewright_contract.schemes import BUCKETS, HF, HTTP, HTTPS, OCI, PVC, SCHEMES, Scheme
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.remote.bucket_schemes import BUCKET_SCHEMES
from enginewright_runtime.remote.buckets import bucket
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.sources import open_source
from enginewright_runtime.sources.base import ModelSource
from enginewright_runtime.sources.claim import ClaimSource
from enginewright_runtime.sources.http import HttpSource
from enginewright_runtime.sources.hub import HubSource
from enginewright_runtime.sources.objects import ObjectSource
from enginewright_runtime.sources.registry import RegistrySource

from tests.support.store_places import no_waiting

SOURCES: Final[dict[Scheme, type[ModelSource]]] = {
    HTTPS: HttpSource,
    HTTP: HttpSource,
    HF: HubSource,
    OCI: RegistrySource,
    PVC: ClaimSource,
    **dict.fromkeys(BUCKETS, ObjectSource),
}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    no_waiting(monkeypatch)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_address_of_every_scheme_is_opened(scheme: Scheme, tmp_path: Path) -> None:
    address = scheme.form.replace("REGISTRY", "registry.example").replace("REPOSITORY", "models/m")
    opened = open_source(address, tmp_path, tmp_path / "none", anonymous=True)
    assert isinstance(opened, SOURCES[scheme])
    assert opened.shown.startswith(scheme.prefix)


def test_buckets_of_every_scheme_that_the_store_may_have_are_opened() -> None:
    assert tuple(BUCKET_SCHEMES) == BUCKETS


@pytest.mark.parametrize("scheme", BUCKETS, ids=lambda scheme: scheme.name)
def test_secret_without_keys_names_one(scheme: Scheme) -> None:
    with pytest.raises(StageFailure) as caught:
        bucket(f"{scheme.prefix}b/a", Secret({"PASSWORD": "x"}))
    remedy = caught.value.finding.remedy or ""
    assert any(key in scheme.keys for key in remedy.replace(",", "").split() if len(key) > 4)


@pytest.mark.parametrize("scheme", BUCKETS, ids=lambda scheme: scheme.name)
def test_platform_identity_variables_are_known(scheme: Scheme) -> None:
    for name in (*BUCKET_SCHEMES[scheme].environment, *scheme.variables.split()):
        assert name in {"and", "with", "or"} or name.startswith(scheme.variable_prefixes)


def test_another_scheme_is_refused_with_the_forms_of_all() -> None:
    with pytest.raises(StageFailure) as caught:
        open_source("ftp://host/m.onnx", Path("/none"), Path("/none"))
    assert all(scheme.form in caught.value.message for scheme in SCHEMES)
