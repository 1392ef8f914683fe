"""The server's certificate and key, from the Secret of spec.serving.tls, renewed when the Secret is.

Connections keep the context that they began with; new ones get the latest that can be used.
"""

import logging
import ssl
from dataclasses import dataclass
from typing import Final, Self

from enginewright_contract.reasons import Reason
from enginewright_runtime.core.failure import StageFailure

from enginewright_serving.mounted_secret import MountedSecret

_log: Final = logging.getLogger(__name__)
_SECRET: Final = "the Secret of spec.serving.tls.secretRef"  # noqa: S105 - its name in messages
_CERTIFICATE: Final = "tls.crt"
_KEY: Final = "tls.key"
# TLS 1.2 with forward secrecy and authenticated encryption only, as HTTP/2 requires (RFC 9113 9.2.2);
# the suites of TLS 1.3 are all like that
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


@dataclass(frozen=True, slots=True)
class Contexts:
    """What new connections of each protocol use."""

    http: ssl.SSLContext
    grpc: ssl.SSLContext

    @classmethod
    def load(cls, certificate: str, key: str) -> Self:
        """Read a chain and its key, both PEM; raise OSError, such as ssl.SSLError, if that fails."""
        return cls(_context(certificate, key, "http/1.1"), _context(certificate, key, "h2"))


class Certificate:
    """The certificate in use."""

    def __init__(self, secret: MountedSecret) -> None:
        """Read it; raise StageFailure if it cannot be used."""
        self._secret = secret
        self._state = secret.state()
        try:
            self.contexts = self._load()
        except OSError as error:
            raise StageFailure(Reason.SECRET_UNUSABLE, f"{_SECRET} {_why(error)}") from error

    def renew(self) -> None:
        """Read it again if it has changed; if the new one cannot be used, the earlier one stays."""
        earlier, state = self._state, self._secret.state()
        if state == earlier:
            return
        self._state = state
        try:
            self.contexts = self._load()
        except OSError as error:
            if not isinstance(error, ssl.SSLError | FileNotFoundError):
                # such as too many open files
                self._state = None  # read it again later, even if it does not change
                if earlier is None:  # reported before
                    return
            remedy = Reason.SECRET_UNUSABLE.remedy.partition(";")[0]
            _log.error(
                "%s %s; the earlier certificate stays in use: %s", _SECRET, _why(error), remedy
            )
        else:
            _log.info("new connections get the renewed certificate")

    def _load(self) -> Contexts:
        folder = self._secret.folder()
        return Contexts.load(str(folder / _CERTIFICATE), str(folder / _KEY))


def _context(certificate: str, key: str, protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([protocol])
    context.load_cert_chain(certificate, key, password="")
    return context


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"has a {_KEY} that is not of its {_CERTIFICATE}"
        shown = error.reason or "no PEM, or an encrypted key"
        return f"has a {_CERTIFICATE} or {_KEY} that cannot be used: {shown}"
    if isinstance(error, FileNotFoundError):
        return f"does not exist or lacks {_CERTIFICATE} or {_KEY}"
    return f"cannot be read: {error.strerror}"
