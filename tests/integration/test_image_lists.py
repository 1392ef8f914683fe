"""Images for nodes of several architectures: one reference in a real registry, from which each node gets its own.

Their contents are empty: building them takes an emulator many minutes.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest

from tests.support.image_builder import load_images
from tests.support.programs import run_program
from tests.support.source_servers import SourceServers

pytestmark = pytest.mark.timeout(900)  # the servers and buildah may have to be installed first
BOTH: Final = ("amd64", "arm64")
LIST: Final = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
IMAGE: Final = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The program, with a storage of its own: builds beside the tests remove images from the machine's."""
    module = load_images()
    module.install_tools()
    folder = tmp_path_factory.mktemp("containers")
    configuration = folder / "storage.conf"
    configuration.write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(configuration))
        yield module


@pytest.fixture
def registry(images: ModuleType, servers: SourceServers) -> Any:
    return images.Registry(f"{servers.host('registry')}/team", plain_http=True)


@pytest.fixture
def image(images: ModuleType) -> Iterator[Any]:
    """An image of no other name."""
    named = images.Image("several", "operator/Containerfile", None, "test-of-lists", None, ())
    yield named
    images.remove(lambda reference: "/test-of-lists:" in reference)


def buildah(*arguments: str) -> str:
    return run_program(["buildah", *arguments], timeout=120).stdout.strip()


def hold(images: ModuleType, image: Any, *names: str) -> Any:
    """Have buildah hold an empty image for each architecture, as a build leaves them."""
    platforms = images.Platforms(names)
    for name in names:
        container = buildah("from", "scratch")
        buildah("config", "--arch", name, "--env", f"OF={name}", container)
        buildah("commit", "--quiet", container, platforms.reference(image, name))
        buildah("rm", container)
    return platforms


def in_registry(pushed: str, kinds: str, digest: str = "", kind: str = "manifests") -> Any:
    host, path = pushed.split("/", 1)
    name, tag = path.rsplit(":", 1)
    request = Request(f"http://{host}/v2/{name}/{kind}/{digest or tag}", headers={"Accept": kinds})
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_one_reference_names_an_image_for_each_architecture(
    images: ModuleType, image: Any, registry: Any
) -> None:
    platforms = hold(images, image, *BOTH)
    images.push(image, platforms, registry)
    pushed = images.push(image, platforms, registry)  # again, as after an interrupted installation
    assert pushed == f"{registry.path}/{image.reference.removeprefix('localhost/')}-amd64-arm64"
    listed = in_registry(pushed, LIST)["manifests"]
    assert [item["platform"]["architecture"] for item in listed] == list(BOTH)
    for item, name in zip(listed, BOTH, strict=True):
        manifest = in_registry(pushed, IMAGE, item["digest"])
        config = in_registry(pushed, "*/*", manifest["config"]["digest"], "blobs")
        assert config["architecture"] == name
        assert f"OF={name}" in config["config"]["Env"]


def test_an_image_of_one_architecture_is_pushed_for_it(
    images: ModuleType, image: Any, registry: Any
) -> None:
    alone = replace(image, architectures=("amd64",))
    hold(images, alone, "amd64")
    pushed = images.push(alone, images.Platforms(BOTH), registry)
    (listed,) = in_registry(pushed, LIST)["manifests"]
    assert listed["platform"]["architecture"] == "amd64"


def test_an_image_of_this_machine_alone_is_pushed_under_its_own_reference(
    images: ModuleType, image: Any, registry: Any
) -> None:
    container = buildah("from", "scratch")
    buildah("commit", "--quiet", container, image.reference)
    buildah("rm", container)
    pushed = images.push(image, images.Platforms(), registry)
    assert pushed.endswith(image.reference.removeprefix("localhost/"))
    assert in_registry(pushed, IMAGE)["config"]
