"""Checks tokens where spec.serving.auth requires them, in subclasses of the applications: others pay nothing."""

import hmac
import logging
from typing import Final

from enginewright_contract.reasons import Reason
from enginewright_contract.task import LIVE_PATH, READY_PATH, ServeTask
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.request_errors import RequestError
from typing_extensions import override

from enginewright_serving.client_tokens import NO_TOKENS, copies_token, read_tokens
from enginewright_serving.mounted_secret import MountedSecret
from enginewright_serving.server.api.app import ServerApp
from enginewright_serving.server.api.grpc.app import GrpcApp
from enginewright_serving.server.api.grpc.methods import MODEL_INFER, OPEN_METHODS
from enginewright_serving.server.api.http_errors import error_response
from enginewright_serving.server.api.http_routes import INFERENCES
from enginewright_serving.transport.grpc.call import GrpcCall
from enginewright_serving.transport.grpc.status import Status
from enginewright_serving.transport.message import HttpRequest, HttpResponse
from enginewright_serving.transport.settings import TransportSettings

_log: Final = logging.getLogger(__name__)
_SECRET: Final = "the Secret of spec.serving.auth.secretRef"  # noqa: S105 - its name in messages
_AUTHORIZATION: Final = b"authorization"
_OPEN: Final = frozenset({LIVE_PATH.encode(), READY_PATH.encode()})  # kubelets have no token
_MISSING: Final = "a bearer token is required; send Authorization: Bearer TOKEN"
_UNKNOWN: Final = "the bearer token is not valid; see spec.serving.auth of the InferenceModel"


class Authentication:
    """The tokens in force: those that the Secret has now."""

    def __init__(self, secret: MountedSecret, revision: str) -> None:
        """Read the Secret, for a server of `revision`; raise StageFailure without a token, which would refuse all requests."""
        self._secret = secret
        self._state = secret.state()
        self._revision = revision
        self._tokens = NO_TOKENS
        self._copies = b""  # Authorization of copies from other pods, if there is a token
        try:
            problem = self._read()
        except OSError as error:
            problem = f"{_SECRET} cannot be read: {error.strerror}"
        if problem:
            raise StageFailure(Reason.SECRET_UNUSABLE, problem)

    def renew(self) -> None:
        """Read the Secret again if it has changed; if it cannot be read, the earlier tokens stay until it can be."""
        earlier, state = self._state, self._secret.state()
        if state == earlier:
            return
        self._state = state
        try:
            problem = self._read()
        except OSError as error:
            self._state = None
            if earlier is not None:
                shown = f"{_SECRET} cannot be read: {error.strerror}"
                _log.error("%s; the earlier tokens stay in force until it can be", shown)
            return
        if problem:
            _log.error("%s: every request is refused until it is corrected", problem)

    def problem(self, authorization: bytes) -> str:
        """Return why a request with this Authorization is refused, or "" if it is admitted."""
        is_copy = bool(self._copies) and hmac.compare_digest(authorization, self._copies)
        if is_copy or self._tokens.client(authorization) is not None:
            return ""
        return _UNKNOWN if authorization else _MISSING

    def _read(self) -> str:
        """Read the tokens; return why there is none. After an OSError the earlier ones stay."""
        secret = self._secret.read()
        self._copies = b""
        self._tokens = read_tokens(secret)
        for problem in self._tokens.problems:
            _log.warning(
                "%s: %s; write one token of letters, digits and -._~+/ per line", _SECRET, problem
            )
        if not self._tokens.clients:
            return f"{_SECRET} does not exist or has no valid token"
        self._copies = f"Bearer {copies_token(secret, self._revision)}".encode()
        names = ", ".join(sorted(set(self._tokens.clients.values())))
        _log.info("requests need a token of one of these clients: %s", names)
        return ""


class GuardedServerApp(ServerApp):
    """HTTP with tokens."""

    def __init__(
        self,
        task: ServeTask,
        settings: TransportSettings,
        version: str,
        probe_token: str,
        authentication: Authentication,
    ) -> None:
        """Requests with `probe_token` need no other token."""
        super().__init__(task, settings, version, probe_token)
        self._authentication = authentication

    @override
    def admit(self, request: HttpRequest) -> HttpResponse | None:
        if request.target in _OPEN or self.inference.is_probe(request):
            return super().admit(request)
        problem = self._authentication.problem(request.authorization)
        return self._refuse_unauthorized(request, problem) if problem else super().admit(request)

    def _refuse_unauthorized(self, request: HttpRequest, problem: str) -> HttpResponse:
        """Refuse a request as RFC 6750 (3) has it."""
        error = ', error="invalid_token"' if request.authorization else ""
        headers = f'WWW-Authenticate: Bearer realm="enginewright"{error}\r\n'.encode()
        refusal = RequestError(401, problem)
        resource = self.find(request)
        if resource in INFERENCES:
            request.route = resource
            self.inference.begin(request)
            return self.refuse_inference(request, refusal, headers)
        return error_response(refusal, headers)


class GuardedGrpcApp(GrpcApp):
    """gRPC with tokens."""

    metadata = GrpcApp.metadata | {_AUTHORIZATION}

    def __init__(
        self,
        task: ServeTask,
        settings: TransportSettings,
        version: str,
        http: ServerApp,
        authentication: Authentication,
    ) -> None:
        super().__init__(task, settings, version, http)
        self._authentication = authentication

    @override
    def admit(self, call: GrpcCall) -> Status | None:
        if call.method not in OPEN_METHODS:
            given = call.metadata.get(_AUTHORIZATION, b"")
            if problem := self._authentication.problem(given):
                if call.method == MODEL_INFER:
                    self._inference.begin(call)
                return self.refuse(call, RequestError(401, problem))
        return super().admit(call)
