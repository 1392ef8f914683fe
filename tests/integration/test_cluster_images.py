"""Images of one static binary, and what an archive is known by."""

import tarfile
from pathlib import Path

from driver.images import archive_binary, inspect

from tests.support.optional import present
from tests.unit.test_cluster_images import _binary


def test_an_image_of_a_binary_names_itself_and_holds_the_binary(tmp_path: Path) -> None:
    archive = tmp_path / "pause.tar"
    archive_binary(_binary(tmp_path / "pause", b"\x7fELF"), "localhost/pause:1", archive)
    assert inspect(archive).references == ("localhost/pause:1",)
    with tarfile.open(archive) as tar:
        layer = present(tar.extractfile("layer.tar"))
        with tarfile.open(fileobj=layer) as files:
            member = files.getmember("pause")
            assert member.mode == 0o755
            content = present(files.extractfile(member))
            assert content.read() == b"\x7fELF"


def test_the_digest_follows_the_content_not_the_file(tmp_path: Path) -> None:
    digests = []
    for number, content in enumerate((b"one", b"one", b"two")):
        folder = tmp_path / str(number)
        folder.mkdir()
        archive_binary(_binary(folder / "tool", content), "localhost/tool:1", folder / "tool.tar")
        digests.append(inspect(folder / "tool.tar").digest)
    assert digests[0] == digests[1] != digests[2]
