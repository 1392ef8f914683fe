"""The responses to HTTP requests that fail."""

from enginewright_runtime.core.request_errors import RequestError

from enginewright_serving.server.api.http_routes import ServedResource
from enginewright_serving.server.protocol.embeddings import FieldError
from enginewright_serving.transport.application import RETRY_AFTER, json_response, refusal_response
from enginewright_serving.transport.message import HttpResponse


def error_response(
    error: RequestError, headers: bytes = b"", *, resource: object = None
) -> HttpResponse:
    """Return the response to a request that fails with `error`, in the form of what it asks for."""
    headers += RETRY_AFTER if error.status == 503 else b""
    if resource is not ServedResource.EMBEDDINGS:
        return refusal_response(error.status, error.message, headers)
    field, code = (error.field, error.code) if isinstance(error, FieldError) else (None, None)
    document = {
        "message": error.message,
        "type": "invalid_request_error" if error.status < 500 else "server_error",
        "param": field,
        "code": code,
    }
    return json_response(error.status, {"error": document}, headers)
