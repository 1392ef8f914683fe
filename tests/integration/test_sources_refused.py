"""Sources at addresses that Jobs may not connect, on real sockets: named, resolved and redirected to."""

import socket
from collections.abc import Callable, Iterator

import pytest
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_contract.task import REFUSED_NETWORKS_VARIABLE
from enginewright_runtime.remote.peers import Peers, RefusedPeerError

from tests.support import broken_models as broken
from tests.support.preparing import Outcome, Workplace
from tests.support.source_web import Answer, ScriptedServer, Seen

pytestmark = pytest.mark.usefixtures("nowhere", "hasty")
RELU = broken.relu().SerializeToString()
KEYS = {"AWS_ACCESS_KEY_ID": "ann", "AWS_SECRET_ACCESS_KEY": "x"}
SOURCES: dict[
    str, Callable[[str], tuple[str, dict[str, str]]]
] = {  # address and Secret of a source on a host with a port
    "http": lambda at: (f"http://{at}/m.onnx", {"token": "t0ken"}),
    "s3": lambda at: ("s3://models/m.onnx", {**KEYS, "AWS_ENDPOINT_URL": f"http://{at}"}),
    "gs": lambda at: ("gs://models/m.onnx", {"GOOGLE_BASE_URL": f"http://{at}"}),
    "az": lambda at: (
        "az://models/m.onnx",
        {
            "AZURE_STORAGE_ACCOUNT_NAME": "models",
            "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
            "AZURE_STORAGE_ENDPOINT": f"http://{at}",
        },
    ),
    "hf": lambda at: ("hf://team/model/m.onnx", {"HF_ENDPOINT": f"http://{at}", "token": "t0ken"}),
    "oci": lambda at: (f"oci://{at}/team/model:1", {"plain-http": "true"}),
}
schemes = pytest.mark.parametrize("scheme", SOURCES)


@pytest.fixture
def inner() -> Iterator[ScriptedServer]:
    """Run what pods of the network answer, and sources must not."""
    with ScriptedServer(lambda _: (200, {}, RELU)) as server:
        yield server


def refuse(monkeypatch: pytest.MonkeyPatch, *networks: str) -> None:
    monkeypatch.setenv(REFUSED_NETWORKS_VARIABLE, ",".join(networks))


def check_refused(outcome: Outcome, address: str) -> None:
    refused = (ExitCode.PERMANENT, Reason.SOURCE_REFUSED)
    assert (outcome.code, outcome.report.reason) == refused, outcome.message
    assert f"the source, or where it redirects to, is at {address}: " in outcome.message


# fault: Security | a source, a redirect or what a name resolves to is link-local, a metadata
#   service or in a listed
#   network | SourceRefused, before it is connected | at `fetch`
@schemes
def test_a_source_at_a_metadata_service(scheme: str, place: Workplace) -> None:
    check_refused(place.fetch(*SOURCES[scheme]("169.254.169.254")), "169.254.169.254")


@schemes
def test_a_name_that_resolves_into_a_listed_network(
    scheme: str, inner: ScriptedServer, place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, "127.0.0.0/8", "::1/128")
    outcome = place.fetch(*SOURCES[scheme](f"localhost:{inner.server_address[1]}"))
    check_refused(outcome, "::1" if "::1" in outcome.message else "127.0.0.1")
    assert inner.seen == []


@schemes
def test_a_source_that_redirects_to_a_metadata_service(
    scheme: str, inner: ScriptedServer, place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second server answers on 127.0.0.2, where the first one, allowed, sends clients."""
    with socket.create_server(("127.0.0.2", 0)) as listening:
        port = listening.getsockname()[1]

        def redirect(_: Seen) -> Answer:
            return 302, {"Location": f"http://127.0.0.2:{port}/latest/meta-data"}, b""

        inner.answer = redirect
        refuse(monkeypatch, "127.0.0.2/32")
        outcome = place.fetch(*SOURCES[scheme](f"127.0.0.1:{inner.server_address[1]}"))
        check_refused(outcome, "127.0.0.2")
        assert inner.seen
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("169.254.170.23", "link-local"),
        ("fe80::1", "link-local"),
        ("::ffff:169.254.169.254", "link-local"),
        ("64:ff9b::a9fe:a9fe", "link-local"),
        ("2002:a9fe:a9fe::1", "link-local"),
        ("fd00:ec2::254", "metadata"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("::ffff:10.1.2.3", "network 10.0.0.0/8"),
    ],
)
def test_every_form_of_an_address(address: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "10.0.0.0/8")
    with pytest.raises(RefusedPeerError, match=kind):
        Peers().connect(address, 80)


def test_a_private_network_is_allowed_unless_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch)
    info = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("10.1.2.3", 80))
    Peers().open_socket(info).close()


def test_a_bucket_is_reached_by_the_proxy_of_the_environment(
    inner: ScriptedServer, place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", inner.url.replace("http://", "http://ann:s3cret@"))
    inner.answer = lambda _: (403, {}, b"")
    assert place.fetch(*SOURCES["s3"]("models.invalid")).code == ExitCode.TRANSIENT
    (request, *_) = inner.seen
    assert request.path == "http://models.invalid/models/m.onnx"
    assert request.headers["Proxy-Authorization"] == "Basic YW5uOnMzY3JldA=="
