"""s3, gs and az on real servers: what is brought, resumed, refused, and who the pod is to them."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_runtime.remote import bucket_client
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.sources.objects import ObjectSource
from enginewright_runtime.sources.quota import DiskQuota

from tests.support import broken_models as broken
from tests.support.preparing import Outcome, Workplace
from tests.support.source_cutter import Cutter
from tests.support.source_identities import FEDERATED_TOKEN, Identities
from tests.support.source_servers import AZURE_ACCOUNT, PASSWORD, SourceServers
from tests.support.source_web import Answer, ScriptedServer, Seen

pytestmark = [
    pytest.mark.timeout(900),  # the servers may have to be built first
    pytest.mark.usefixtures("nowhere"),
]
KEYS = {"AWS_ACCESS_KEY_ID": "ann", "AWS_SECRET_ACCESS_KEY": "x"}
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


schemes = pytest.mark.parametrize("scheme", ["s3", "gs", "az"])


@schemes
@pytest.mark.parametrize("path", ["plain.onnx", "team a/modèl+1%.onnx", "deep", "deep/onnx/"])
def test_a_file_or_a_folder_with_one_model(
    scheme: str, path: str, filled: SourceServers, place: Workplace
) -> None:
    outcome = place.fetch(f"{scheme}://models/{path}", secret_for(scheme, filled))
    assert outcome.code == 0, outcome.message
    assert (place.root / "work/model/model.onnx").read_bytes() == RELU
    assert outcome.full["facts"]["source"]["pin"].startswith(("etag ", "version "))


@schemes
@pytest.mark.parametrize("path", ["bert", "bert/net.onnx"])
def test_external_data_beside_the_model(
    scheme: str, path: str, filled: SourceServers, place: Workplace
) -> None:
    outcome = place.fetch(f"{scheme}://models/{path}", secret_for(scheme, filled))
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
def test_a_missing_object(
    scheme: str, path: str, reported: str, filled: SourceServers, place: Workplace
) -> None:
    outcome = place.fetch(f"{scheme}://{path}", secret_for(scheme, filled))
    assert reported in outcome.message


@pytest.mark.parametrize("scheme", ["s3", "az"])  # the server of gs does not tell it
def test_a_bucket_that_is_not_there(scheme: str, filled: SourceServers, place: Workplace) -> None:
    outcome = place.fetch(f"{scheme}://nobucket/m.onnx", secret_for(scheme, filled))
    assert f"{scheme}://nobucket/m.onnx: there is no such bucket" in outcome.message


def at(address: str) -> dict[str, dict[str, str]]:
    """Return Secrets without credentials, by scheme, that name a server."""
    account = {"AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT}
    return {
        "s3": {"AWS_ENDPOINT_URL": address},
        "gs": {"GOOGLE_BASE_URL": address},
        "az": {**account, "AZURE_STORAGE_ENDPOINT": address},
    }


@schemes
@pytest.mark.parametrize(("path", "to_head"), [("m.onnx", 404), ("m.onnx", 405), ("", 404)])
def test_a_server_that_says_without_a_document_that_it_has_nothing(
    scheme: str, path: str, to_head: int, place: Workplace
) -> None:
    def answer(seen: Seen) -> Answer:
        return (to_head if seen.method == "HEAD" else 404), {}, b""

    with ScriptedServer(answer) as server:
        outcome = place.fetch(f"{scheme}://models/{path}", at(server.url)[scheme])
    assert (outcome.code, outcome.report.reason) == (ExitCode.TRANSIENT, Reason.SOURCE_UNREACHABLE)
    assert f"://models/{path}: there is no such bucket; check spec.source.uri" in outcome.message


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
        through = Secret({**secret, variable: cutter.url})
        source = ObjectSource(f"{scheme}://models/big.bin", through)
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

    def replace() -> None:
        filled.put_s3("models", {"moving.bin": new})

    with Cutter(filled.addresses["s3"], 1_200_000, 1, on_cut=replace) as cutter:
        secret = Secret(filled.s3(AWS_ENDPOINT_URL=cutter.url))
        source = ObjectSource("s3://models/moving.bin", secret)
        assert source.find() == "moving.bin"
        source.copy("moving.bin", place.root / "big", DiskQuota(place.root, "a model", 1 << 40))
    assert (place.root / "big").read_bytes() == new


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wr0ng"}, "the secret access key is wrong; correct the Secret"),
        ({"AWS_ACCESS_KEY_ID": "b0b"}, "there is no such access key"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "cannot connect to 127.0.0.1:9"),
        ({"AWS_ENDPOINT_URL": "http://models.invalid"}, "the name models.invalid cannot be resolv"),
        ({"AWS_ENDPOINT_URL": "TLS"}, "is not trusted (UnknownIssuer)"),
        ({"ca.crt": "no PEM"}, "ca.crt of the Secret holds no certificate in PEM"),
    ],
)
def test_errors_of_s3_are_reported(
    change: dict[str, str], reported: str, filled: SourceServers, place: Workplace
) -> None:
    replaced = {
        key: filled.addresses["s3_tls"] if value == "TLS" else value
        for key, value in change.items()
    }
    outcome = place.fetch("s3://models/plain.onnx", filled.s3(**replaced))
    assert (outcome.code, outcome.report.reason) == (ExitCode.TRANSIENT, Reason.SOURCE_UNREACHABLE)
    assert reported in outcome.message
    assert "Error performing" not in outcome.message


def test_an_authority_of_one_s_own_is_trusted(filled: SourceServers, place: Workplace) -> None:
    authority = (filled.folder / "ca.crt").read_text()
    secret = filled.s3(**{"AWS_ENDPOINT_URL": filled.addresses["s3_tls"], "ca.crt": authority})
    assert place.fetch("s3://models/plain.onnx", secret).code == 0


def test_the_region_of_a_bucket_is_found_out(filled: SourceServers, place: Workplace) -> None:
    outcome = place.fetch("s3://models/bert", filled.s3(AWS_REGION="us-west-2"))
    assert outcome.code == 0, outcome.message


def test_a_bucket_that_only_points_elsewhere(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer(lambda _: (301, {}, b"")) as server:
        monkeypatch.setattr(bucket_client, "_REGION_OF", server.url + "/{bucket}")
        outcome = place.fetch("s3://models/m.onnx", {**KEYS, "AWS_ENDPOINT_URL": server.url})
    assert "the bucket is in another region; put AWS_REGION into the Secret" in outcome.message


@pytest.mark.parametrize(
    ("secret", "reported"),
    [
        ({"AWS_ACCESS_KEY_ID": "ann"}, "has only AWS_ACCESS_KEY_ID; give it the keys AWS_ACCESS"),
        ({"token": "t0ken"}, "has only token; give it the keys AWS_ACCESS_KEY_ID and AWS_SECRET"),
        ({}, "secretRef names does not exist in this namespace, or is empty"),
    ],
)
def test_a_secret_that_does_not_fit(
    secret: dict[str, str], reported: str, place: Workplace
) -> None:
    assert reported in place.fetch("s3://models/m.onnx", secret).message


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="}, "the key or signature is wrong"),
        ({"AZURE_STORAGE_ACCOUNT_KEY": "no base64!"}, "are invalid: Invalid Access Key"),
    ],
)
def test_errors_of_azure_are_reported(
    change: dict[str, str], reported: str, filled: SourceServers, place: Workplace
) -> None:
    outcome = place.fetch("az://models/plain.onnx", {**secret_for("az", filled), **change})
    assert reported in outcome.message
    assert "d3Jvbmc=" not in outcome.message


def test_an_azure_address_without_an_account(place: Workplace) -> None:
    outcome = place.fetch("az://models/plain.onnx", {"AZURE_STORAGE_SAS_TOKEN": "sig=s3cret"})
    assert "does not name the storage account" in outcome.message


def test_an_azure_signature_that_has_expired_is_not_shown(
    filled: SourceServers, tmp_path: Path
) -> None:
    secret = secret_for("az", filled)
    del secret["AZURE_STORAGE_ACCOUNT_KEY"]
    signature = "sv=2021-08-06&se=2020-01-01T00%3A00%3A00Z&sr=c&sp=r&sig=s3cretsig"
    command = Workplace(tmp_path)
    outcome = command.fetch(
        "az://models/plain.onnx", {**secret, "AZURE_STORAGE_SAS_TOKEN": signature}
    )
    assert "the key or signature is wrong" in outcome.message
    assert "s3cretsig" not in outcome.message + outcome.log + str(outcome.full)


def test_a_service_account_that_is_none(place: Workplace) -> None:
    outcome = place.fetch("gs://models/m.onnx", {"service-account.json": '{"type": "s3cret"}'})
    assert "are invalid: GCP credential error: Unable to decode" in outcome.message
    assert "s3cret" not in outcome.message


def test_nothing_secret_is_logged(filled: SourceServers, tmp_path: Path) -> None:
    command = Workplace(tmp_path)
    secret = filled.s3(AWS_SESSION_TOKEN="session-t0ken", AWS_REGION="us-west-2")
    outcome = command.fetch("s3://models/none.onnx", secret)
    assert outcome.report.reason is Reason.SOURCE_UNREACHABLE
    reported = outcome.message + outcome.log + str(outcome.full)
    assert PASSWORD not in reported
    assert "session-t0ken" not in reported


# Who the pod is


@dataclass(frozen=True)
class Pod:
    """A pod to which the cluster gives a token, the services that give identities for it, and the stores."""

    place: Workplace
    servers: SourceServers
    plain: Identities  # of the node alone, without TLS
    tls: Identities
    monkeypatch: pytest.MonkeyPatch

    def set(self, environment: Mapping[str, str]) -> None:
        """Set variables as a cluster does."""
        token = self.place.root / "token"
        token.write_text(FEDERATED_TOKEN)
        variables = {
            "plain": self.plain.server.url,
            "host": self.plain.server.url.removeprefix("http://"),
            "tls": self.tls.server.url,
            "token": token,
            **self.servers.addresses,
        }
        for name, text in environment.items():
            self.monkeypatch.setenv(name, text.format_map(variables))

    def fetch(self, scheme: str) -> Outcome:
        """Fetch a model without credentials."""
        secret = {"ca.crt": (self.servers.folder / "ca.crt").read_text()}
        return self.place.fetch(f"{scheme}://models/plain.onnx", secret)


@pytest.fixture
def pod(filled: SourceServers, place: Workplace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    with ScriptedServer() as plain, ScriptedServer(certificate=filled.folder / "tls.pem") as tls:
        pod_services = Pod(place, filled, Identities(plain), Identities(tls), monkeypatch)
        plain.answer, tls.answer = pod_services.plain.answer, pod_services.tls.answer
        yield pod_services


# No store on one machine can check a session token or one of Entra: that the identity's was got and
# shown to the store is what these see. The S3 server then names the one that it does not know.
SHOWN = "the session token is not valid; let the pod's own identity read it"
S3 = {"AWS_ENDPOINT_URL": "{s3}", "AWS_REGION": "eu-central-1"}
ROLE = {  # as EKS does for IRSA: a token in a file, and a role to take on with it
    "AWS_WEB_IDENTITY_TOKEN_FILE": "{token}",
    "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/reader",
    "AWS_ENDPOINT_URL_STS": "{tls}/sts",
    **S3,
}
POD_IDENTITY = {  # as EKS Pod Identity does: an agent of the node that takes the token itself
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "{plain}/eks",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "{token}",
    **S3,
}
AZURE = {
    "AZURE_FEDERATED_TOKEN_FILE": "{token}",
    "AZURE_CLIENT_ID": "client",
    "AZURE_TENANT_ID": "tenant",
    "AZURE_AUTHORITY_HOST": "{tls}",
    "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
}
MACHINE = {"AWS_METADATA_ENDPOINT": "{plain}", **S3}
GKE = {"GCE_METADATA_HOST": "{host}", "GOOGLE_BASE_URL": "{gcs}"}  # it answers for the pod


@pytest.mark.parametrize(
    ("scheme", "environment", "asked", "reported"),
    [
        ("s3", MACHINE, "PUT /latest/api/token", SHOWN),
        ("gs", GKE, "GET /computeMetadata/v1/instance/service-accounts/default/token", None),
        ("s3", ROLE, "POST /sts", SHOWN),
        ("s3", POD_IDENTITY, "GET /eks", SHOWN),
        (
            "az",
            {**AZURE, "AZURE_STORAGE_ENDPOINT": "{azure}"},
            "POST /tenant/oauth2/v2.0/token",
            "let the pod's own identity read it",
        ),
    ],
    ids=["a role of the machine", "GKE", "a role of the service account", "EKS", "Azure"],
)
def test_the_pods_identity_is_shown_to_the_store(
    scheme: str, environment: dict[str, str], asked: str, reported: str | None, pod: Pod
) -> None:
    if scheme == "az":
        secret_for("az", pod.servers)  # or it is skipped
    pod.set(environment)
    outcome = pod.fetch(scheme)
    assert (outcome.code == 0) is (reported is None), outcome.message
    assert (reported or "") in outcome.message
    assert FEDERATED_TOKEN not in outcome.message
    assert [*pod.plain.asked, *pod.tls.asked][0] == asked
    if pod.tls.asked:
        (request, *_) = pod.tls.server.seen
        assert FEDERATED_TOKEN in request.path + request.body.decode()


def read_credentials(server: ScriptedServer) -> set[str]:
    """Return the credentials in the headers that a server got, of which there were some."""
    assert server.seen
    names = {"authorization", "x-amz-security-token"}
    headers = (header for seen in server.seen for header in seen.headers.items())
    return {value for name, value in headers if name.lower() in names}


# fault: Security | a model's Secret, or its az:// address, names a server that shall get the token of
#   the pod's own identity | the server is asked without that identity | prevented
@pytest.mark.parametrize(
    ("scheme", "environment"),
    [("s3", MACHINE), ("s3", ROLE), ("s3", POD_IDENTITY), ("gs", GKE), ("az", AZURE)],
    ids=["a role of the machine", "a role of the service account", "EKS", "GKE", "Azure"],
)
def test_the_pods_identity_is_not_shown_to_a_server_that_a_secret_names(
    scheme: str, environment: dict[str, str], pod: Pod
) -> None:
    pod.set(environment)
    with ScriptedServer(lambda _: (403, {}, b"")) as server:
        outcome = pod.place.fetch(f"{scheme}://models/plain.onnx", at(server.url)[scheme])
    assert "the pod's own identity is not shown to a server that the Secret" in outcome.message
    assert (read_credentials(server), pod.plain.asked, pod.tls.asked) == (set(), [], [])


@pytest.mark.parametrize(
    ("scheme", "environment", "keys"),
    [
        ("s3", {"AWS_SESSION_TOKEN": "another"}, KEYS),
        ("az", AZURE, {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=s1g"}),
    ],
)
def test_a_secret_s_own_credentials_come_first(
    scheme: str, environment: dict[str, str], keys: dict[str, str], pod: Pod
) -> None:
    pod.set(environment)
    with ScriptedServer(lambda _: (403, {}, b"")) as server:
        pod.place.fetch(f"{scheme}://models/plain.onnx", at(server.url)[scheme] | keys)
    assert all(text.startswith("AWS4-HMAC-SHA256 ") for text in read_credentials(server))
    assert pod.tls.asked == []


def test_a_machine_without_a_role_sends_no_credentials(
    filled: SourceServers, place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer() as empty:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", empty.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL", filled.addresses["s3"])
        outcome = place.fetch("s3://models/plain.onnx")
    assert "access is denied; the request had no credentials: name a Secret" in outcome.message


def test_a_role_that_may_not_be_taken_on(pod: Pod) -> None:
    pod.tls.server.answer = lambda _: (403, {}, b"<Error><Code>AccessDenied</Code></Error>")
    pod.set(ROLE)
    wording = "the pod's identity is not accepted: access is denied; let the pod's"
    assert wording in pod.fetch("s3").message


# fault: Security | a model's source is an artefact of another namespace, which the store's identity
#   may read | sources are read without that identity | prevented
def test_the_identity_of_the_store_is_not_sent_to_sources(pod: Pod) -> None:
    """Its model could else read what other namespaces have in the store; a model's Secret is used."""
    pod.set({**POD_IDENTITY, "AWS_METADATA_ENDPOINT": "{plain}"})
    task = pod.place.task("s3://models/plain.onnx").model_copy(update={"anonymous_sources": True})
    outcome = pod.place.stage("fetch", task)
    assert "access is denied; the request had no credentials" in outcome.message
    assert pod.plain.asked == []
    pod.place.give(secret_for("s3", pod.servers))
    assert pod.place.stage("fetch", task).code == 0
