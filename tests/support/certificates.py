"""Certificates of an authority of the tests' own, made with OpenSSL's command."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_NAMES: Final = "subjectAltName=DNS:localhost,IP:127.0.0.1"


@dataclass(frozen=True)
class Pair:
    """What a Secret of type kubernetes.io/tls contains, as PEM."""

    certificate: str
    key: str

    @property
    def files(self) -> dict[str, str]:
        return {"tls.crt": self.certificate, "tls.key": self.key}


class Authority:
    """Signs certificates for localhost; `path` is the file with its own."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            subprocess.run([_REPOSITORY / "hack/packages", "openssl"], check=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "ca.crt"
        self._folder = folder
        self._key = folder / "ca.key"
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                      "-subj", "/CN=tests", "-days", "2", "-keyout", self._key, "-out", self.path)  # fmt: skip

    def issue(self) -> Pair:
        """Return a new certificate and its key."""
        key, certificate = self._folder / "tls.key", self._folder / "tls.crt"
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                      "-subj", "/CN=localhost", "-days", "2", "-addext", _NAMES,
                      "-CA", self.path, "-CAkey", self._key, "-keyout", key, "-out", certificate)  # fmt: skip
        return Pair(certificate.read_text(), key.read_text())

    @staticmethod
    def _openssl(*arguments: str | Path) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
