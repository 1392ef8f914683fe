"""Draws the picture of preflight's page in README and docs, as a browser shows it.

The page is that of a recorded result, and the picture has the page's digest, by which a test finds a stale one.
"""

import hashlib
import io
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Final

from enginewright_cli.preflight.html.page import page
from enginewright_cli.preflight.result import Result
from PIL import Image
from PIL.ExifTags import Base

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURE: Final = ROOT / "docs/preflight.webp"
_RESULT: Final = ROOT / "hack/preflight.json"  # of `enginewright preflight --json`
_WIDTH: Final = 1200
# what a reader would open: the placement map and the manifest
_OPEN: Final = "document.querySelectorAll('details.card').forEach(each => each.open = !!each.querySelector('.map, .copied'))"
_QUALITY: Final = 85


def render_page() -> str:
    """Return the page of the recorded result."""
    return page([Result.model_validate_json(_RESULT.read_bytes())])


def read_digest() -> str | None:
    """Return the digest of the page that the picture shows, if it has one."""
    with Image.open(PICTURE) as image:
        digest = image.getexif().get(Base.ImageDescription)
    return None if digest is None else str(digest)


def digest_page(text: str) -> str:
    """Return the digest of a page without the version of Enginewright in it."""
    version = metadata.version("enginewright")
    return hashlib.sha256(text.replace(version, "").encode()).hexdigest()


def draw(text: str) -> Image.Image:
    """Return the page as a browser shows it."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only to draw

    browser_path = subprocess.check_output([ROOT / "hack/chromium"], text=True).strip()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "page.html"
        file.write_text(text, encoding="utf-8")
        # its sandbox needs more rights than a container has; the page is ours
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": _WIDTH, "height": 900}, color_scheme="light")
        opened.goto(file.as_uri())
        opened.evaluate(_OPEN)
        shot = opened.screenshot(full_page=True)
        browser.close()
    return Image.open(io.BytesIO(shot)).convert("RGB")


def main() -> int:
    """Draw the picture, unless it shows the page as it is."""
    text = render_page()
    digest = digest_page(text)
    if read_digest() != digest:
        exif = Image.Exif()
        exif[Base.ImageDescription] = digest
        draw(text).save(PICTURE, quality=_QUALITY, exif=exif)
    return 0


if __name__ == "__main__":
    sys.exit(main())
