"""What can go wrong between us and the API server, mapped from HTTP codes in this one place.

The classes say what a caller can do about an error, not what the server called it: only
`Transient` is worth an early retry, and the client has retried it already.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

_TERMINATING: Final = "NamespaceTerminating"  # k8s.io/api core/v1, NamespaceTerminatingCause
_MAX_RETRY_AFTER: Final = 300.0  # seconds; a longer wish is cut, since we look again anyway


class KubeError(Exception):
    """An answer of the API server that is not a success.

    `message` is the server's own sentence, made for people.
    """

    def __init__(self, message: str, *, code: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason


class NotFound(KubeError):  # noqa: N818 - named as the API names it
    """404: the object, or the whole kind when its CRD is missing."""


class Conflict(KubeError):  # noqa: N818 - named as the API names it
    """409: another writer owns a field, the uid is another one, or the name is taken."""


class Forbidden(KubeError):  # noqa: N818 - named as the API names it
    """401 and 403: our role or a quota does not allow it."""


class Terminating(Forbidden):
    """403: the namespace is being deleted, so nothing can be made in it any more."""


class Invalid(KubeError):  # noqa: N818 - named as the API names it
    """400, 413, 415, 422: the same request fails again."""


class Expired(KubeError):  # noqa: N818 - named as the API names it
    """410: a list's continuation is too old; start it again."""


class Transient(KubeError):  # noqa: N818 - says what to do: try again
    """429, 5xx, a broken connection, a time-out: the same request may succeed later."""

    def __init__(
        self, message: str, *, code: int = 0, reason: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message, code=code, reason=reason)
        self.retry_after = retry_after  # seconds, as the server asked; None: it did not


def error_from(code: int, body: bytes, headers: Mapping[str, str]) -> KubeError:
    """Return the error for an HTTP answer; `body` is a `Status` object or any text."""
    status = _status_of(body)
    message = str(status.get("message") or f"the API server answered {code}")
    reason = str(status.get("reason") or "")
    if code == 429 or code >= 500:
        return Transient(
            message, code=code, reason=reason, retry_after=_retry_after(headers.get("Retry-After"))
        )
    kind = Terminating if _is_terminating(status) else _CLASSES.get(code, Invalid)
    return kind(message, code=code, reason=reason)


_CLASSES: Final[dict[int, type[KubeError]]] = {
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
}


def _status_of(body: bytes) -> Mapping[str, Any]:
    """Return a `Status` body; the start of the text as its message when it is none."""
    try:
        status = json.loads(body)
    except ValueError:
        return {"message": body[:200].decode(errors="replace").strip()}
    return status if isinstance(status, dict) else {}


def _is_terminating(status: Mapping[str, Any]) -> bool:
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return isinstance(causes, list) and any(
        isinstance(each, dict) and each.get("reason") == _TERMINATING for each in causes
    )


def _retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header (RFC 9110, 10.2.3), cut to what is sensible.

    An HTTP date is answered with None: it needs a clock in step with the server's, and the API
    server sends seconds.
    """
    if value is None:
        return None
    try:
        return min(max(float(value), 0.0), _MAX_RETRY_AFTER)
    except ValueError:
        return None
