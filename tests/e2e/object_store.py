"""An S3 server beside the cluster: pods reach it at an address outside of their network, as they do a cloud's."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from driver.layout import HUB_ADDRESS, Cluster

from tests.e2e.harness import CLUSTER_NAME
from tests.support.source_servers import SourceServers, go_servers

BUCKET: Final = "store"
_PORT: Final = 9000
_ENDPOINT: Final = f"http://{HUB_ADDRESS}:{_PORT}"


@contextmanager
def serving(folder: Path) -> Iterator[dict[str, str]]:
    """Run the server on files in a folder, a bucket each; yield the contents of a Secret for it."""
    enter = ("nsenter", Cluster(CLUSTER_NAME).enter, "--")
    with go_servers(folder, enter=enter) as servers:
        (folder / "s3" / BUCKET).mkdir()
        # it listens on the loopback interface only
        listen = f"TCP-LISTEN:{_PORT},bind={HUB_ADDRESS},reuseaddr,fork"
        connect = "TCP:" + servers.addresses["s3"].removeprefix("http://")
        forward = subprocess.Popen([*enter, "socat", listen, connect])
        try:
            yield SourceServers(folder, servers.addresses).s3(AWS_ENDPOINT_URL=_ENDPOINT)
        finally:
            forward.terminate()
            forward.wait(20)
