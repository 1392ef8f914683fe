"""What people read on a terminal: options that can be pasted, and nothing that it would obey.

What of it starts something: the rest is in tests/unit.
"""

import os
from pathlib import Path

from tests.support import broken_models as broken
from tests.support.preflighting import preflight


def test_a_path_that_is_no_utf8_is_refused_in_words(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.onnx")
    Path(path).write_bytes(broken.relu().SerializeToString())
    done = preflight(path, "--target", "cpu", "--html", "page.html", folder=tmp_path)
    assert done.code == 2
    assert "\\udcff.onnx: its name is no UTF-8; rename it" in "".join(done.stderr.splitlines())
    assert not (tmp_path / "page.html").exists()
