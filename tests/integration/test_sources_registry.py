"""Artefacts of a real OCI registry: open, with a password, with tokens; and what must be refused."""

import base64
import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.sources.quota import DiskQuota
from enginewright_runtime.sources.registry import RegistrySource

from tests.support import broken_models as broken
from tests.support.preparing import Workplace
from tests.support.source_cutter import Cutter
from tests.support.source_servers import PASSWORD, USERNAME, SourceServers
from tests.support.source_web import ScriptedServer

pytestmark = [
    pytest.mark.timeout(900),  # the servers may have to be built first
    pytest.mark.usefixtures("hasty"),
]
RELU = broken.relu().SerializeToString()
MODEL = broken.external("weights/w 1.bin").SerializeToString()
ACCOUNT = {"username": USERNAME, "password": PASSWORD}


def model_at(place: Workplace, name: str = "model.onnx") -> bytes:
    return (place.root / "work/model" / name).read_bytes()


def test_layers_are_files_by_their_titles(servers: SourceServers, place: Workplace) -> None:
    files: dict[str | None, bytes]
    files = {"net.onnx": MODEL, "weights/w 1.bin": broken.weights(), "README.md": b"#"}
    digest = servers.push("team/bert", "v1", files)
    outcome = place.fetch(f"oci://{servers.host('registry')}/team/bert:v1")
    assert "and 1 external data file," in outcome.message
    assert (model_at(place), model_at(place, "weights/w 1.bin")) == (MODEL, broken.weights())
    assert outcome.full["facts"]["source"]["pin"] == f"manifest {digest}"


@pytest.mark.parametrize("title", ["models/net.onnx", "net.onnx", None])
def test_one_layer_is_the_model_and_a_digest_names_it(
    title: str | None, servers: SourceServers, place: Workplace
) -> None:
    digest = servers.push("team/single", "latest", {title: RELU})
    servers.push("team/single", "latest", {"other.onnx": MODEL})
    outcome = place.fetch(f"oci://{servers.host('registry')}/team/single@{digest}")
    assert outcome.code == 0, outcome.message
    assert model_at(place) == RELU


def test_one_layer_may_be_an_archive(servers: SourceServers, place: Workplace) -> None:
    """`oras push` packs a folder like that."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in (("bert/net.onnx", MODEL), ("bert/weights/w 1.bin", broken.weights())):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    servers.push("team/folder", "v1", {"bert": packed.getvalue()})
    outcome = place.fetch(f"oci://{servers.host('registry')}/team/folder:v1")
    assert "and 1 external data file," in outcome.message
    assert model_at(place, "weights/w 1.bin") == broken.weights()


def test_an_index_of_one_manifest_is_followed(servers: SourceServers, place: Workplace) -> None:
    digest = servers.push("team/index", "amd64", {"net.onnx": RELU})
    kind = "application/vnd.oci.image.index.v1+json"
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": digest,
        "size": 1,
        "platform": {"os": "linux", "architecture": "amd64"},
    }
    attested = {**entry, "platform": {"os": "unknown", "architecture": "unknown"}}
    index = {"schemaVersion": 2, "mediaType": kind, "manifests": [entry, attested]}
    pin = servers.push_manifest("team/index", "v1", index)
    outcome = place.fetch(f"oci://{servers.host('registry')}/team/index:v1")
    assert outcome.code == 0, outcome.message
    assert outcome.full["facts"]["source"]["pin"] == f"manifest {pin}"
    servers.push_manifest("team/index", "v2", {**index, "manifests": [entry, entry]})
    outcome = place.fetch(f"oci://{servers.host('registry')}/team/index:v2")
    assert "is an index of 2 manifests; name one of them" in outcome.message


def docker_config(host: str, username: str = USERNAME, password: str = PASSWORD) -> dict[str, str]:
    auth = base64.b64encode(f"{username}:{password}".encode()).decode()
    return {".dockerconfigjson": json.dumps({"auths": {host: {"auth": auth}}})}


@pytest.mark.parametrize("kind", ["registry_basic", "registry_token"])
@pytest.mark.parametrize("form", ["account", "docker", "docker-url"])
def test_a_private_artefact(kind: str, form: str, servers: SourceServers, place: Workplace) -> None:
    servers.push("team/private", "v1", {"net.onnx": RELU})
    host = servers.host(kind)
    secret = {
        "account": ACCOUNT,
        "docker": docker_config(host),
        "docker-url": docker_config(f"https://{host}/v1/"),
    }[form]
    outcome = place.fetch(f"oci://{host}/team/private:v1", secret)
    assert outcome.code == 0, outcome.message
    assert model_at(place) == RELU


def test_a_public_artefact_needs_a_token_without_an_account(
    servers: SourceServers, place: Workplace
) -> None:
    servers.push("public/model", "v1", {"net.onnx": RELU})
    outcome = place.fetch(f"oci://{servers.host('registry_token')}/public/model:v1")
    assert outcome.code == 0, outcome.message


@pytest.mark.parametrize(
    ("kind", "secret", "reported"),
    [
        ("registry_basic", None, "answered 401 Unauthorized; check the credentials in secretRef"),
        ("registry_token", None, "answered 401 Unauthorized; check the credentials in secretRef"),
        ("registry_basic", {**ACCOUNT, "password": "wr0ng"}, "answered 401 Unauthorized; check"),
        ("registry_token", {**ACCOUNT, "password": "wr0ng"}, "/token answered 401 Unauthorized"),
        ("registry_basic", docker_config("ghcr.io"), "no account for 127.0.0.1:"),
        ("registry_basic", {".dockerconfigjson": "{}"}, "is no Docker configuration"),
        ("registry_basic", {"username": USERNAME}, "has only username; give it the keys"),
    ],
)
def test_a_private_artefact_without_the_right_account(
    kind: str,
    secret: dict[str, str] | None,
    reported: str,
    servers: SourceServers,
    place: Workplace,
) -> None:
    servers.push("team/private", "v1", {"net.onnx": RELU})
    outcome = place.fetch(f"oci://{servers.host(kind)}/team/private:v1", secret)
    assert (outcome.code, outcome.report.reason) == (ExitCode.TRANSIENT, Reason.SOURCE_UNREACHABLE)
    assert reported in outcome.message
    assert "wr0ng" not in outcome.message


def test_passwords_and_tokens_are_not_logged(servers: SourceServers, tmp_path: Path) -> None:
    command = Workplace(tmp_path)
    servers.push("team/private", "v1", {"net.onnx": RELU})
    outcome = command.fetch(f"oci://{servers.host('registry_token')}/team/private:none", ACCOUNT)
    assert "there is no such artefact" in outcome.message
    reported = outcome.message + outcome.log + str(outcome.full)
    assert PASSWORD not in reported
    assert "eyJ" not in reported, "a token"


def test_a_layer_that_breaks_off_goes_on_where_it_stopped(
    servers: SourceServers, place: Workplace
) -> None:
    content = np.random.default_rng(1).bytes(4_000_000)
    servers.push("team/big", "v1", {"big.bin": content})
    with Cutter(servers.addresses["registry_token"], 1_200_000, 3) as cutter:
        host = cutter.url.removeprefix("http://")
        source = RegistrySource(f"oci://{host}/team/big:v1", Secret(ACCOUNT))
        assert source.find() == "big.bin"
        source.copy("big.bin", place.root / "big", DiskQuota(place.root, "a model", 1 << 40))
        assert cutter.cuts == 3
    assert (place.root / "big").read_bytes() == content


def test_a_layer_with_another_digest_is_refused(servers: SourceServers, place: Workplace) -> None:
    content = RELU + b"\x00"
    servers.push("team/changed", "v1", {"net.onnx": content})
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    servers.blob_file(digest).write_bytes(RELU + b"\x01")
    outcome = place.fetch(f"oci://{servers.host('registry')}/team/changed:v1")
    assert (outcome.code, outcome.report.reason) == (ExitCode.PERMANENT, Reason.DIGEST_MISMATCH)
    assert f"its source lists {digest.partition(':')[2]}" in outcome.message


def test_a_manifest_with_another_digest_is_refused(place: Workplace) -> None:
    """A registry does not store a manifest under a wrong digest, so this registry itself is faulty."""
    with ScriptedServer(lambda _: (200, {}, b'{"layers": []}')) as server:
        host = server.url.removeprefix("http://")
        outcome = place.fetch(f"oci://{host}/team/model@sha256:{'0' * 64}")
    assert outcome.report.reason is Reason.DIGEST_MISMATCH
    assert "its source lists 000" in outcome.message


@pytest.mark.parametrize(
    ("title", "reported"),
    [
        ("../net.onnx", "leads out of the folder"),
        ("/etc/net.onnx", "is an absolute path"),
        ("a\\net.onnx", "has a backslash"),
        ("a\nb.onnx", "cannot be printed"),
    ],
)
def test_a_title_that_leads_elsewhere_is_refused(
    title: str, reported: str, servers: SourceServers, place: Workplace
) -> None:
    servers.push("team/evil", "v1", {title: RELU, "other": b"x"})
    outcome = place.fetch(f"oci://{servers.host('registry')}/team/evil:v1")
    assert outcome.report.reason is Reason.SOURCE_UNREACHABLE
    assert reported in outcome.message


@pytest.mark.parametrize(
    ("reference", "reported"),
    [
        ("team/none:v1", "there is no such artefact"),
        ("team/plain:v2", "there is no such artefact"),
        ("team/plain@sha512:00", "names no artefact; write oci://REGISTRY"),
        ("TEAM/plain:v1", "names no artefact; write oci://REGISTRY/REPOSITORY:TAG"),
    ],
)
def test_an_artefact_that_is_not_there(
    reference: str, reported: str, servers: SourceServers, place: Workplace
) -> None:
    servers.push("team/plain", "v1", {"net.onnx": RELU})
    assert reported in place.fetch(f"oci://{servers.host('registry')}/{reference}").message


def test_a_container_image_is_no_model(servers: SourceServers, place: Workplace) -> None:
    servers.push("team/image", "v1", {})
    outcome = place.fetch(f"oci://{servers.host('registry')}/team/image:v1")
    assert "has no files; push the model into it" in outcome.message
