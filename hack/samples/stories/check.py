"""Before any cluster: the checks of a model that a laptop can run."""

from pathlib import Path

from hack.samples.magika import REPOSITORY
from hack.samples.shell import Shell

_PAGE = "build/preflight.html"


def run(shell: Shell, models: Path) -> None:
    """Run the story, with the folder of real models."""
    (REPOSITORY / _PAGE).parent.mkdir(exist_ok=True)
    model = next(models.rglob("standard_v3_3/model.onnx"))
    with shell.chapter(
        "(0) On a laptop, without a cluster: would this model run where it is to be deployed?"
    ):
        shell.show(f"enginewright preflight --target cpu,sm89 --html {_PAGE} {model}")
        print(f"\nThe same as a page: {_PAGE}")
