"""What the pod of an upload to a claim runs, as a process: files arrive whole, and from the holder of the token alone."""

import asyncio
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import aiohttp
import pytest
from enginewright_cli.reporting import CommandError
from enginewright_cli.upload import claim
from enginewright_cli.upload.files import LocalFile
from kubernetes.aio.client.configuration import Configuration

from tests.support.ports import free_port
from tests.support.waiting import until

TOKEN = "t" * 32


class Pod:
    """The container of an upload's pod."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        (container,) = claim.make_pod("ns", "models", "image", TOKEN)["spec"]["containers"]
        _, *arguments, _ = container["command"]
        variables = {item["name"]: item["value"] for item in container["env"]}
        environment = {**os.environ, **variables, "UPLOAD_ROOT": str(folder)}
        command = [sys.executable, *arguments, str(self.port)]
        self.process = Popen(command, env=environment, stderr=DEVNULL)
        until(self.answers, "the pod")

    def answers(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def send(self, file: LocalFile, folder: str = "", *, overwrite: bool = False) -> None:
        """Send a file without an API server between."""

        async def act() -> None:
            configuration = Configuration()
            configuration.host = f"http://127.0.0.1:{self.port}"
            async with aiohttp.ClientSession() as session:
                sender = claim._Sender(session, configuration, "ns", "pod", TOKEN)
                sender._path = ""
                await sender.store(file, folder, overwrite=overwrite)

        asyncio.run(act())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    folder = tmp_path / "claim"
    folder.mkdir()
    with closing(Pod(folder)) as running:
        yield running


def make_file(folder: Path, content: bytes, name: str = "m.onnx") -> LocalFile:
    path = folder / "source"
    path.write_bytes(content)
    return LocalFile(path, name, len(content), hashlib.sha256(content).hexdigest())


def test_files_arrive_whole_and_replace_others_only_on_request(pod: Pod, tmp_path: Path) -> None:
    content = os.urandom(3_000_001)
    stored = pod.folder / "a b/w/m.onnx"
    pod.send(make_file(tmp_path, content, "w/m.onnx"), "a b")
    assert stored.read_bytes() == content
    pod.send(make_file(tmp_path, content, "w/m.onnx"), "a b")  # is there already
    other = make_file(tmp_path, b"other", "w/m.onnx")
    with pytest.raises(CommandError, match="exists with other content"):
        pod.send(other, "a b")
    assert stored.read_bytes() == content
    pod.send(other, "a b", overwrite=True)
    assert stored.read_bytes() == b"other"
    assert [path.name for path in stored.parent.iterdir()] == ["m.onnx"]


def test_a_file_that_changes_on_the_way_is_not_believed(pod: Pod, tmp_path: Path) -> None:
    file = make_file(tmp_path, b"before")
    file.path.write_bytes(b"after!")
    with pytest.raises(CommandError, match="the digest in the claim differs"):
        pod.send(file)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/m", {}, 403),
        ("/m", {"Enginewright-Upload": "x"}, 403),
        ("/../m", {"Enginewright-Upload": TOKEN}, 400),
        ("/%2e%2e/m", {"Enginewright-Upload": TOKEN}, 400),
    ],
)
def test_what_is_refused_leaves_nothing(
    pod: Pod, path: str, headers: dict[str, Any], status: int
) -> None:
    request = Request(f"http://127.0.0.1:{pod.port}{path}", bytes(5_000_000), headers)
    with pytest.raises(HTTPError) as refused:
        urlopen(request, timeout=10)
    assert refused.value.code == status
    assert list(pod.folder.iterdir()) == []
    assert not (pod.folder.parent / "m").exists()
