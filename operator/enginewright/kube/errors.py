"""Errors of requests to the API server, mapped from HTTP codes.

The classes say what a caller can do about an error: only `Transient` is worth a retry, and the client
has already retried it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

_TERMINATING: Final = "NamespaceTerminating"  # k8s.io/api core/v1, NamespaceTerminatingCause
_MAX_RETRY_AFTER: Final = 300.0  # seconds; longer ones are reduced, since every object is resynced


class KubeError(Exception):
    """A request that the API server did not complete successfully; `message` is the server's own, for people."""

    remedy = ""  # for people, unless the message has one
    is_of_one_write = True  # else no other request would succeed either

    def __init__(self, message: str, *, code: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason


class NotSent(KubeError):  # noqa: N818 - says what is wrong
    """This process may not send requests, or not any more."""

    is_of_one_write = False


class NotFound(KubeError):  # noqa: N818 - named as the API names it
    """404: the object does not exist, or its kind, if the CRD is missing."""


class Conflict(KubeError):  # noqa: N818 - named as the API names it
    """409: another manager owns a field, the uid or version differs, or the name is taken."""


class Forbidden(KubeError):  # noqa: N818 - named as the API names it
    """401 and 403: credentials, RBAC, a quota or a webhook do not allow it."""

    remedy = "change the quota, the right or the policy that refuses it"


class Terminating(Forbidden):
    """403: the namespace is being deleted, so nothing can be created in it."""

    is_of_one_write = False


class Invalid(KubeError):  # noqa: N818 - named as the API names it
    """400, 413, 415, 422: the same request fails again."""

    remedy = "change the field or the policy that it names"


class Expired(KubeError):  # noqa: N818 - named as the API names it
    """410: the list's continue token has expired; list from the beginning."""


class Transient(KubeError):  # noqa: N818 - says what to do: try again
    """429, 5xx, a broken connection, a timeout: the same request may succeed later."""

    remedy = "repair what does not answer the API server"

    def __init__(
        self, message: str, *, code: int = 0, reason: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message, code=code, reason=reason)
        self.retry_after = retry_after  # seconds, from the Retry-After header
        # that a webhook cannot be reached says nothing of other requests
        self.is_of_one_write = reason == "InternalError"


def error_from(code: int, body: bytes, headers: Mapping[str, str]) -> KubeError:
    """Return the error for an HTTP response; `body` is a `Status` object or any text."""
    status = _status_of(body)
    message = str(status.get("message") or f"the API server responded with {code}")
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
    """Return a `Status` body; for other text, its beginning as the message."""
    try:
        status = json.loads(body)
    except ValueError:
        return {"message": body[:200].decode(errors="replace").strip()}
    return status if isinstance(status, dict) else {}


def _is_terminating(status: Mapping[str, Any]) -> bool:
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("reason") == _TERMINATING for cause in causes
    )


def _retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header (RFC 9110, 10.2.3), capped; the API server sends no HTTP dates."""
    if value is None:
        return None
    try:
        return min(max(float(value), 0.0), _MAX_RETRY_AFTER)
    except ValueError:
        return None
