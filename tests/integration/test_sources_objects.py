"""s3, gs and az on real servers: what is brought, resumed, refused, and who the pod is to them."""

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_runtime.prepare.fetch import stage as fetch
from enginewright_runtime.remote import bucket_client, retry
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.sources.objects import ObjectSource
from enginewright_runtime.sources.quota import DiskQuota

from tests.support import broken_models as broken
from tests.support.preparing import Outcome, Workplace
from tests.support.source_cutter import Cutter
from tests.support.source_identities import FEDERATED_TOKEN, Identities
from tests.support.source_servers import PASSWORD, SourceServers
from tests.support.source_web import ScriptedServer

pytestmark = pytest.mark.timeout(900)  # the servers may have to be built first
RELU = broken.relu().SerializeToString()
MODEL = broken.external("weights/w 1.bin").SerializeToString()
BIG = np.random.default_rng(1).bytes(4_000_000)
FILES = {
    "plain.onnx": RELU,
    "team a/modèl+1%.onnx": RELU,
    "bert/net.onnx": MODEL,
    "bert/weights/w 1.bin": broken.weights(),
    "bert/README.md": b"#",
    "deep/onnx/model.onnx": RELU,
    "two/a.onnx": RELU,
    "two/b.onnx": RELU,
    "empty.onnx": b"",
    "big.bin": BIG,
}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test ask a metadata service of the machine that it runs on, or wait between tries."""
    monkeypatch.setattr(retry, "_FIRST_PAUSE", 0.001)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("AZURE_MSI_ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def filled(servers: SourceServers) -> SourceServers:
    """Return the servers with the same files in bucket "models" of each."""
    servers.put_s3("models", FILES)
    servers.put_gcs("models", FILES)
    if "azure" in servers.addresses:
        servers.put_azure("models", FILES)
    return servers


def secret_for(scheme: str, servers: SourceServers, address: str | None = None) -> dict[str, str]:
    match scheme:
        case "s3":
            return servers.s3(AWS_ENDPOINT_URL=address or servers.addresses["s3"])
        case "gs":  # it knows no accounts: it is asked as a public bucket is
            return {"GOOGLE_BASE_URL": address or servers.addresses["gcs"]}
        case _:
            if "azure" not in servers.addresses:
                pytest.skip("azurite needs node and npm: Azure is not tested on a server here")
            return servers.azure(AZURE_STORAGE_ENDPOINT=address or servers.addresses["azure"])


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path, in_process=True)


Fetch = Callable[[str, Mapping[str, str]], Outcome]


@pytest.fixture
def fetching(place: Workplace) -> Fetch:
    """Return a function that fetches a model with a Secret."""

    def fetched(uri: str, secret: Mapping[str, str]) -> Outcome:
        give(place, secret)
        return place.stage("fetch", place.task(uri))

    return fetched


def give(place: Workplace, secret: Mapping[str, str], folder: str = "credentials") -> None:
    (place.root / folder).mkdir(exist_ok=True)
    for key, value in secret.items():
        (place.root / folder / key).write_text(value)


schemes = pytest.mark.parametrize("scheme", ["s3", "gs", "az"])


@schemes
@pytest.mark.parametrize("path", ["plain.onnx", "team a/modèl+1%.onnx", "deep", "deep/onnx/"])
def test_a_file_or_a_folder_with_one_model(
    scheme: str, path: str, filled: SourceServers, place: Workplace, fetching: Fetch
) -> None:
    outcome = fetching(f"{scheme}://models/{path}", secret_for(scheme, filled))
    assert outcome.code == 0, outcome.message
    assert (place.root / "work/model/model.onnx").read_bytes() == RELU
    assert outcome.full is not None
    assert outcome.full["facts"]["source"]["pin"].startswith(("etag ", "version "))


@schemes
@pytest.mark.parametrize("path", ["bert", "bert/net.onnx"])
def test_external_data_beside_the_model(
    scheme: str, path: str, filled: SourceServers, place: Workplace, fetching: Fetch
) -> None:
    outcome = fetching(f"{scheme}://models/{path}", secret_for(scheme, filled))
    assert "and 1 external data file," in outcome.message
    assert (place.root / "work/model/weights/w 1.bin").read_bytes() == broken.weights()
    assert not (place.root / "work/model/README.md").exists()


@schemes
@pytest.mark.parametrize(
    ("path", "reported"),
    [
        ("models/nett.onnx", "/models/nett.onnx: there is no such file or folder"),
        ("models/two", "/models/two has 2 .onnx files: a.onnx, b.onnx; name the file"),
        ("models/bert/weights", "has 0 .onnx files: none"),
        ("models/empty.onnx", "it is empty"),
    ],
)
def test_what_is_not_there(
    scheme: str, path: str, reported: str, filled: SourceServers, fetching: Fetch
) -> None:
    outcome = fetching(f"{scheme}://{path}", secret_for(scheme, filled))
    assert reported in outcome.message


@pytest.mark.parametrize("scheme", ["s3", "az"])  # the server of gs does not tell it
def test_a_bucket_that_is_not_there(scheme: str, filled: SourceServers, fetching: Fetch) -> None:
    outcome = fetching(f"{scheme}://nobucket/m.onnx", secret_for(scheme, filled))
    assert f"{scheme}://nobucket/m.onnx: there is no such bucket" in outcome.message


@schemes
def test_a_download_that_breaks_off_goes_on_where_it_stopped(
    scheme: str,
    filled: SourceServers,
    place: Workplace,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = secret_for(scheme, filled)
    variable = next(key for key in secret if "ENDPOINT" in key or "BASE_URL" in key)
    with (
        Cutter(secret[variable], 1_200_000, 3) as cutter,
        caplog.at_level(logging.WARNING, "enginewright_runtime"),
    ):
        source = ObjectSource(
            f"{scheme}://models/big.bin", Secret({**secret, variable: cutter.url})
        )
        name = source.find()
        assert name == "big.bin"
        quota = DiskQuota(place.root, "a model", 1 << 40)
        copied = source.copy(name, place.root / "big", quota)
        assert (place.root / "big").read_bytes() == BIG
        assert copied.size_bytes == len(BIG)
        assert cutter.cuts == 3
    resumed = [line for line in caplog.messages if "the connection broke off after" in line]
    assert len(resumed) == 3, caplog.messages
    assert "from 0 B" not in resumed[1], "it went on"


def test_an_object_that_was_replaced_meanwhile_is_taken_whole(
    filled: SourceServers, place: Workplace
) -> None:
    new = np.random.default_rng(2).bytes(3_000_000)
    filled.put_s3("models", {"moving.bin": BIG})
    cutter = Cutter(
        filled.addresses["s3"],
        1_200_000,
        1,
        on_cut=lambda: filled.put_s3("models", {"moving.bin": new}),
    )
    with cutter:
        source = ObjectSource(
            "s3://models/moving.bin", Secret(filled.s3(AWS_ENDPOINT_URL=cutter.url))
        )
        assert source.find() == "moving.bin"
        source.copy("moving.bin", place.root / "big", DiskQuota(place.root, "a model", 1 << 40))
    assert (place.root / "big").read_bytes() == new


def test_a_server_that_always_breaks_off_is_given_up(
    filled: SourceServers, fetching: Fetch
) -> None:
    with Cutter(filled.addresses["s3"], 0, 1000) as cutter:
        outcome = fetching("s3://models/big.bin", filled.s3(AWS_ENDPOINT_URL=cutter.url))
    assert (outcome.code, outcome.report.reason) == (ExitCode.TRANSIENT, Reason.SOURCE_UNREACHABLE)
    assert "the connection broke off" in outcome.message
    assert "(4 tries)" in outcome.message


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wr0ng"}, "the secret access key is wrong; correct the Secret"),
        ({"AWS_ACCESS_KEY_ID": "b0b"}, "there is no such access key"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "cannot connect to 127.0.0.1:9"),
        (
            {"AWS_ENDPOINT_URL": "http://models.invalid"},
            "the name models.invalid cannot be resolved",
        ),
        ({"AWS_ENDPOINT_URL": "TLS"}, "is not trusted (UnknownIssuer)"),
        ({"ca.crt": "no PEM"}, "ca.crt of the Secret holds no certificate in PEM"),
    ],
)
def test_what_is_wrong_with_s3_is_reported(
    change: dict[str, str], reported: str, filled: SourceServers, fetching: Fetch
) -> None:
    replaced = {
        key: filled.addresses["s3_tls"] if value == "TLS" else value
        for key, value in change.items()
    }
    outcome = fetching("s3://models/plain.onnx", filled.s3(**replaced))
    assert (outcome.code, outcome.report.reason) == (ExitCode.TRANSIENT, Reason.SOURCE_UNREACHABLE)
    assert reported in outcome.message
    assert "Error performing" not in outcome.message


def test_an_authority_of_one_s_own_is_trusted(filled: SourceServers, fetching: Fetch) -> None:
    authority = (filled.folder / "ca.crt").read_text()
    secret = filled.s3(**{"AWS_ENDPOINT_URL": filled.addresses["s3_tls"], "ca.crt": authority})
    assert fetching("s3://models/plain.onnx", secret).code == 0


def test_the_region_of_a_bucket_is_found_out(filled: SourceServers, fetching: Fetch) -> None:
    outcome = fetching("s3://models/bert", filled.s3(AWS_REGION="us-west-2"))
    assert outcome.code == 0, outcome.message


def test_a_bucket_that_only_points_elsewhere(
    fetching: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amazon answers like that; whoever is asked for the region here tells none."""
    with ScriptedServer(lambda _: (301, {}, b"")) as server:
        monkeypatch.setattr(bucket_client, "_REGION_OF", server.url + "/{bucket}")
        keys = {"AWS_ACCESS_KEY_ID": "ann", "AWS_SECRET_ACCESS_KEY": "x"}
        outcome = fetching("s3://models/m.onnx", {**keys, "AWS_ENDPOINT_URL": server.url})
    assert "the bucket is in another region; put AWS_REGION into the Secret" in outcome.message


@pytest.mark.parametrize(
    ("secret", "reported"),
    [
        (
            {"AWS_ACCESS_KEY_ID": "ann"},
            "has only AWS_ACCESS_KEY_ID; give it the keys AWS_ACCESS_KEY_ID and",
        ),
        ({"token": "t0ken"}, "has only token; give it the keys AWS_ACCESS_KEY_ID and AWS_SECRET"),
        ({}, "secretRef names does not exist in this namespace, or is empty"),
    ],
)
def test_a_secret_that_does_not_fit(secret: dict[str, str], reported: str, fetching: Fetch) -> None:
    assert reported in fetching("s3://models/m.onnx", secret).message


def test_without_credentials_a_private_bucket_is_refused(
    filled: SourceServers, fetching: Fetch
) -> None:
    outcome = fetching("s3://models/plain.onnx", {"AWS_ENDPOINT_URL": filled.addresses["s3"]})
    assert "access is denied; it was asked without credentials: name a Secret" in outcome.message


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="}, "the key or signature is wrong"),
        ({"AZURE_STORAGE_ACCOUNT_KEY": "no base64!"}, "are invalid: Invalid Access Key"),
    ],
)
def test_what_is_wrong_with_azure_is_reported(
    change: dict[str, str], reported: str, filled: SourceServers, fetching: Fetch
) -> None:
    outcome = fetching("az://models/plain.onnx", {**secret_for("az", filled), **change})
    assert reported in outcome.message
    assert "d3Jvbmc=" not in outcome.message


def test_an_azure_address_without_an_account(fetching: Fetch) -> None:
    outcome = fetching("az://models/plain.onnx", {"AZURE_STORAGE_SAS_TOKEN": "sig=s3cret"})
    assert "does not say in which storage account" in outcome.message


def test_an_azure_signature_that_has_expired_is_not_shown(
    filled: SourceServers, place: Workplace
) -> None:
    secret = secret_for("az", filled)
    del secret["AZURE_STORAGE_ACCOUNT_KEY"]
    signature = "sv=2021-08-06&se=2020-01-01T00%3A00%3A00Z&sr=c&sp=r&sig=s3cretsig"
    (place.root / "command").mkdir()
    command = Workplace(place.root / "command")
    give(command, {**secret, "AZURE_STORAGE_SAS_TOKEN": signature})
    outcome = command.stage("fetch", command.task("az://models/plain.onnx"))
    assert "the key or signature is wrong" in outcome.message
    assert "s3cretsig" not in outcome.message + outcome.log + str(outcome.full)


def test_a_service_account_that_is_none(fetching: Fetch) -> None:
    outcome = fetching("gs://models/m.onnx", {"service-account.json": '{"type": "s3cret"}'})
    assert "are invalid: GCP credential error: Unable to decode" in outcome.message
    assert "s3cret" not in outcome.message


def test_nothing_secret_is_logged(filled: SourceServers, tmp_path: Path) -> None:
    command = Workplace(tmp_path)
    give(command, filled.s3(AWS_SESSION_TOKEN="session-t0ken", AWS_REGION="us-west-2"))
    outcome = command.stage("fetch", command.task("s3://models/none.onnx"))
    assert outcome.report.reason is Reason.SOURCE_UNREACHABLE
    reported = outcome.message + outcome.log + str(outcome.full)
    assert PASSWORD not in reported
    assert "session-t0ken" not in reported


def test_a_model_that_may_not_be_so_large_is_not_begun(
    filled: SourceServers, fetching: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_LARGEST_MODEL", 1000)
    outcome = fetching("s3://models/big.bin", filled.s3())
    assert (outcome.code, outcome.report.reason) == (ExitCode.PERMANENT, Reason.MODEL_TOO_LARGE)
    assert "a model may have 1000 B in all, and with big.bin it has more" in outcome.message


# Who the pod is


@pytest.fixture
def identities(nowhere: None, servers: SourceServers) -> Iterator[Identities]:
    """Run what gives identities, over TLS."""
    with ScriptedServer(certificate=servers.folder / "tls.pem") as server:
        identities = Identities(server)
        server.answer = identities.answer
        yield identities


@pytest.fixture
def plain_identities(nowhere: None) -> Iterator[Identities]:
    """Run what gives identities to the node alone, without TLS."""
    with ScriptedServer() as server:
        identities = Identities(server)
        server.answer = identities.answer
        yield identities


@pytest.fixture
def token(place: Workplace) -> str:
    """Return the path of the token that a cluster gives a pod."""
    path = place.root / "token"
    path.write_text(FEDERATED_TOKEN)
    return str(path)


# No store on one machine can check a session token or one of Entra: that the identity's was got and
# shown to the store is what these see. The S3 server then names the one that it does not know.
SHOWN = "the session token is not valid; let the pod's own identity read it"


def test_a_role_of_the_machine(
    plain_identities: Identities,
    filled: SourceServers,
    fetching: Fetch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", plain_identities.server.url)
    secret = {"AWS_ENDPOINT_URL": filled.addresses["s3"], "AWS_REGION": "eu-central-1"}
    assert SHOWN in fetching("s3://models/plain.onnx", secret).message
    assert plain_identities.asked[0] == "PUT /latest/api/token"


def test_a_workload_identity_of_google(
    plain_identities: Identities,
    filled: SourceServers,
    fetching: Fetch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As GKE does: the metadata service answers for the pod."""
    host = plain_identities.server.url.removeprefix("http://")
    monkeypatch.setenv("GCE_METADATA_HOST", host)
    outcome = fetching("gs://models/plain.onnx", {"GOOGLE_BASE_URL": filled.addresses["gcs"]})
    assert outcome.code == 0, outcome.message
    assert plain_identities.asked == [
        "GET /computeMetadata/v1/instance/service-accounts/default/token"
    ]


def test_a_machine_without_a_role_asks_as_nobody(
    filled: SourceServers, fetching: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer() as empty:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", empty.url)
        outcome = fetching("s3://models/plain.onnx", {"AWS_ENDPOINT_URL": filled.addresses["s3"]})
    assert "access is denied; it was asked without credentials" in outcome.message


def test_a_role_of_the_service_account(
    identities: Identities,
    filled: SourceServers,
    fetching: Fetch,
    token: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As EKS does for IRSA: a token in a file, and a role to take on with it."""
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", identities.server.url + "/sts")
    monkeypatch.setenv("AWS_ENDPOINT_URL", filled.addresses["s3"])
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    outcome = fetching("s3://models/plain.onnx", {"ca.crt": (filled.folder / "ca.crt").read_text()})
    assert SHOWN in outcome.message
    assert identities.asked == ["POST /sts"]
    assert f"WebIdentityToken={FEDERATED_TOKEN}" in identities.server.seen[0].path
    assert FEDERATED_TOKEN not in outcome.message


def test_a_role_that_may_not_be_taken_on(
    identities: Identities,
    filled: SourceServers,
    fetching: Fetch,
    token: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    identities.server.answer = lambda _: (403, {}, b"<Error><Code>AccessDenied</Code></Error>")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", identities.server.url + "/sts")
    outcome = fetching("s3://models/plain.onnx", {"ca.crt": (filled.folder / "ca.crt").read_text()})
    assert "the pod's identity is not accepted: access is denied; let the pod's" in outcome.message


def _set_pod_identity(
    monkeypatch: pytest.MonkeyPatch, identities: Identities, filled: SourceServers, token: str
) -> None:
    """Set the environment as EKS Pod Identity does for a pod that reads the S3 gateway."""
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", identities.server.url + "/eks")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token)
    monkeypatch.setenv("AWS_ENDPOINT_URL", filled.addresses["s3"])
    monkeypatch.setenv("AWS_REGION", "eu-central-1")


def test_a_pod_identity(
    plain_identities: Identities,
    filled: SourceServers,
    place: Workplace,
    token: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As EKS Pod Identity does: an agent of the node that takes the token itself."""
    _set_pod_identity(monkeypatch, plain_identities, filled, token)
    assert SHOWN in place.stage("fetch", place.task("s3://models/plain.onnx")).message
    assert plain_identities.asked == ["GET /eks"]


def test_a_workload_identity_of_azure(
    identities: Identities,
    filled: SourceServers,
    fetching: Fetch,
    token: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    azure = secret_for("az", filled)
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", token)
    monkeypatch.setenv("AZURE_CLIENT_ID", "client")
    monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", identities.server.url)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", azure["AZURE_STORAGE_ACCOUNT_NAME"])
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azure["AZURE_STORAGE_ENDPOINT"])
    outcome = fetching("az://models/plain.onnx", {"ca.crt": (filled.folder / "ca.crt").read_text()})
    assert identities.asked == ["POST /tenant/oauth2/v2.0/token"]
    assert FEDERATED_TOKEN.encode() in identities.server.seen[0].body
    assert "let the pod's own identity read it" in outcome.message


def test_a_pod_whose_identity_is_the_stores_asks_as_nobody(
    plain_identities: Identities,
    filled: SourceServers,
    place: Workplace,
    token: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its model could else read what other namespaces have in the store."""
    _set_pod_identity(monkeypatch, plain_identities, filled, token)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", plain_identities.server.url)
    task = place.task("s3://models/plain.onnx")
    task = task.model_copy(update={"anonymous_sources": True})
    outcome = place.stage("fetch", task)
    assert "access is denied; it was asked without credentials" in outcome.message
    assert plain_identities.asked == []


def test_a_pod_whose_identity_is_the_stores_uses_a_models_secret(
    filled: SourceServers, place: Workplace
) -> None:
    give(place, secret_for("s3", filled))
    task = place.task("s3://models/plain.onnx")
    outcome = place.stage("fetch", task.model_copy(update={"anonymous_sources": True}))
    assert outcome.code == 0, outcome.message
