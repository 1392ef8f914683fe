"""Translates errors of object stores to messages for users.

obstore reports errors as text: a status code, the store's error document, and a dump of the cause.
Only codes are extracted: documents repeat the signed request with its session tokens.
"""

import re
import socket
from dataclasses import dataclass
from typing import Final

from enginewright_runtime.remote.retry import PASSING_STATUSES

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_REGION: Final = re.compile(r"<Region>([a-z0-9-]{1,32})</Region>")
_GONE: Final = "(code: NoSuchKey)"  # of one of the objects in a request that deletes several
_OAUTH: Final = re.compile(r"\"error\"\s*:\s*\"([a-z_]{1,64})\"")
_LOOKED_UP: Final = re.compile(r"Error performing [A-Z]+ https?://(?:[^/\s?]*@)?([^/\s?@]+)")
_WRONG_REGION: Final = frozenset(
    {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"}
)
_CODES: Final = {
    "AccessDenied": "access is denied",
    "AccountIsDisabled": "the storage account is disabled",
    "AuthenticationFailed": "the key or signature is wrong or has expired",
    "AuthorizationFailure": "the key or signature is wrong, or access is denied",
    "AuthorizationPermissionMismatch": "the identity has no right to read (role Storage Blob Data Reader)",
    "ExpiredToken": "the credentials have expired",
    "InvalidAccessKeyId": "there is no such access key",
    "InvalidToken": "the session token is not valid",
    "NoAuthenticationInformation": "access is denied without credentials",
    "PublicAccessNotPermitted": "access is denied without credentials",
    "RequestTimeTooSkewed": "the clocks of node and store differ too much",
    "ResourceNotFound": "access is denied without credentials",
    "SignatureDoesNotMatch": "the secret access key is wrong",
    "XAdminUserNotFound": "there is no such access key",
    "invalid_client": "the client secret is wrong or has expired",
    "invalid_grant": "the key of the service account is no longer valid",
    "unauthorized_client": "there is no such client in this tenant",
}
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"})
# of Amazon's conditional requests while another one for the same object is in progress
CONFLICTS: Final = frozenset({"ConditionalRequestConflict", "OperationAborted"})
_IDENTITY: Final = (  # marks of requests for credentials, not for files
    "token request",
    "/latest/meta-data",
    "redential",
)
# what an answer lacks, or a whole file for a part
_FOREIGN: Final = re.compile(r"\b[Rr]esponse\b|Content-Range")
# to EC2's metadata service and to token services, unless the address is the bucket's
_WRITTEN: Final = re.compile(r"Error performing (?:PUT|POST) (\S+)")


@dataclass(frozen=True)
class StoreError:
    """The meaning of an exception of obstore."""

    message: str
    kind: str  # missing | passes | changed | refused | identity | region | broken
    region: str | None = None  # with kind region, if the store reports it


def store_error(
    error: Exception, bucket: str, received: str, connecting: OSError | None = None
) -> StoreError:
    """Classify an exception of obstore, after an amount `received` from a bucket; `connecting` to it may have failed."""
    text = f"{error} {_name_cause(connecting)}"
    written = _WRITTEN.search(text)
    of_identity = any(mark in text for mark in _IDENTITY) or (
        written is not None and bucket not in written.group(1)
    )
    status = _STATUS.search(text)
    named = _CODE.search(text) or _OAUTH.search(text)
    code = named.group(1) if named else ""
    if code in _NO_BUCKET:
        return StoreError("there is no such bucket", "broken")
    if code in _WRONG_REGION or "redirect without LOCATION" in text:
        region = _REGION.search(text)
        name = region.group(1) if region else None
        return StoreError("the bucket is in another region", "region", name)
    if _GONE in text:
        return StoreError("there is no such file", "missing")
    if status is None or connecting:
        return _without_answer(text, received, of_identity=of_identity)
    return _classify_answer(int(status.group(1)), code, of_identity=of_identity)


def _name_cause(connecting: OSError | None) -> str:
    """Return the words of obstore for a failure to connect."""
    match connecting:
        case None:
            return ""
        case socket.gaierror():
            return "dns error"
        case ConnectionRefusedError():
            return "ConnectionRefused"
        case TimeoutError():
            return "TimedOut"
        case _:
            return "kind: Connect"


def _classify_answer(status: int, code: str, *, of_identity: bool) -> StoreError:
    message = _CODES.get(code) or f"it answered {status} {code.removeprefix(str(status))}".rstrip()
    if of_identity:
        return StoreError(f"the pod's identity is not accepted: {message}", "identity")
    if code in _CODES or status in {401, 403}:
        return StoreError(message, "refused")
    if status == 404:
        return StoreError("there is no such file", "missing")
    if status in {412, 416}:
        return StoreError("the file was replaced meanwhile", "changed")
    passes = status in PASSING_STATUSES or code in CONFLICTS
    return StoreError(message, "passes" if passes else "broken")


def _without_answer(text: str, received: str, *, of_identity: bool) -> StoreError:
    looked_up = _LOOKED_UP.search(text)
    host = looked_up.group(1) if looked_up else "the store"
    if "InvalidCertificate" in text or "CertificateError" in text:
        cause = re.search(r"InvalidCertificate\(\s*([A-Za-z]+)", text)
        return StoreError(
            f"the certificate of {host} is not trusted{f' ({cause.group(1)})' if cause else ''}",
            "broken",
        )
    if "dns error" in text:
        message = f"the name {host} cannot be resolved"
    elif "ConnectionRefused" in text:
        message = f"cannot connect to {host}: connection refused"
    elif "TimedOut" in text or "timed out" in text:
        message = f"no response for 30 s after {received}"
    elif "kind: Connect" in text:
        message = f"cannot connect to {host}"
    elif "HTTP error" in text or "HttpError" in text or "reqwest::Error" in text:
        message = f"the connection broke off after {received}"
    else:
        reason = text.partition("\n")[0].partition(": ")[2].strip() or "no reason given"
        if _FOREIGN.search(reason):  # its address may be another pod's by now
            message = f"what answers at {host} is not an object store: {reason[:200]}"
            return StoreError(message, "passes")
        # a setting that the store's client rejects
        return StoreError(f"the credentials or the address are invalid: {reason[:200]}", "identity")
    return StoreError(message, "identity" if of_identity else "passes")
