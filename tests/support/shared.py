"""One server for the tests of a module, which find it as they have left it: a test that harms it has its own."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx
import pytest

from tests.support.serving import Feeds, Server
from tests.support.sidecar import artifact


def share_server(
    model: Callable[[], onnx.ModelProto],
    *samples: Feeds,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Return the fixture of a server with `options` of its task and `settings` of its process."""

    @pytest.fixture(scope="module")
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        root = tmp_path_factory.mktemp("server")
        task = artifact(root, model(), samples).model_copy(update=dict(options or {}))
        with Server(root, task, **settings) as running:
            yield running

    return server
