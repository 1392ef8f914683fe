"""The locales of the runtime image, on a machine that has others.

A model of strings loads or is refused by what is installed where it is loaded; here it is to be what
happens in the image, whose Containerfile makes the same links.
"""

from pathlib import Path
from typing import Final

FOLDER: Final = "/usr/lib/locale"
ALIASES: Final = ("en_US.utf8", "en_US")  # of C.UTF-8 in the image
_USUAL: Final = "C.utf8"


def lay_out(folder: Path, installed: Path = Path(FOLDER)) -> dict[str, str]:
    """Make the image's locales in `folder`; return the variables by which glibc finds them.

    {}: C.UTF-8 is not where glibc has it, so that what is installed here has to do.
    """
    usual = installed / _USUAL
    if not usual.is_dir():
        return {}
    folder.mkdir(parents=True)
    for name in (_USUAL, *ALIASES):
        (folder / name).symlink_to(usual)
    return {"LOCPATH": str(folder)}
