"""Authentication at OCI registries: Basic, or a bearer token from the registry's token service."""

import base64
import json
import re
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import aiohttp
from enginewright_contract.schemes import OCI

from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.remote.failures import unreachable
from enginewright_runtime.sources.web import read_body

_DOCKER_CONFIG: Final = ".dockerconfigjson"
_PARAMETER: Final = re.compile(r'(\w+)="([^"]*)"')
_DOCKER_HUB: Final = ("docker.io", "index.docker.io", "registry-1.docker.io")
_HOSTS: Final = {"docker.io": "registry-1.docker.io"}  # Docker Hub's API has a different host
_LARGEST_TOKEN: Final = 1 << 20
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1"})


@dataclass(frozen=True)
class Endpoint:
    """Where a registry's API has one repository."""

    url: str
    plain: bool  # HTTP without TLS


def endpoint(secret: Secret, host: str, repository: str) -> Endpoint:
    """Return a repository's endpoint: plain HTTP on the loopback interface, as for Docker, containerd and ORAS."""
    plain = secret.get("plain-http") == "true" or host.partition(":")[0] in _LOOPBACK
    address = _HOSTS.get(host, host)
    return Endpoint(f"{'http' if plain else 'https'}://{address}/v2/{repository}", plain)


@dataclass(frozen=True)
class Account:
    """A user name with its password, or a refresh token; `repr` shows neither."""

    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def header(self) -> dict[str, str]:
        """Return the header of Basic authentication; {} without a user name."""
        if not self.username:
            return {}
        return {"Authorization": aiohttp.encode_basic_auth(self.username, self.password)}


def login(secret: Secret, host: str) -> Account:
    """Return the account for a registry; raises StageFailure, SourceUnreachable, if the Secret has none for it."""
    secret.one_of(("username", "password"), (_DOCKER_CONFIG,), also=("plain-http",))
    username, password = secret.get("username"), secret.get("password")
    if username and ":" in username:
        raise unreachable(
            "the key username of the Secret has a colon, which user names cannot have",
            "put the password into the key password",
        )
    if username and password:
        return Account(username, password)
    config = secret.get(_DOCKER_CONFIG)
    return _from_docker_config(config, host) if config else Account()


def _from_docker_config(config: str, host: str) -> Account:
    """Return the account for `host`; keys may be host names or URLs, as `docker login` writes."""
    try:
        entries = dict(json.loads(config)["auths"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise unreachable(
            f"the key {_DOCKER_CONFIG} of the Secret is no Docker configuration",
            "make it with kubectl create secret docker-registry",
        ) from None
    names = {host, *(_DOCKER_HUB if host in _DOCKER_HUB else ())}
    for server, entry in entries.items():
        if _host(server) in names:
            return _account(entry)
    raise unreachable(
        f"the Secret that secretRef names has no account for {host}, only for {', '.join(entries)}",
        f"add one with kubectl create secret docker-registry --docker-server={host}",
    )


def _host(server: str) -> str:
    try:
        return urlsplit(server if "://" in server else f"//{server}").netloc
    except ValueError:  # no address
        return ""


def _account(entry: Any) -> Account:  # noqa: ANN401 - any JSON value
    try:
        if "username" in entry and "password" in entry:
            username, password = entry["username"], entry["password"]
        else:
            username, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
        account = Account(username, password)
        account.header()
    except (KeyError, TypeError, AttributeError, ValueError):
        raise unreachable(
            f"the key {_DOCKER_CONFIG} of the Secret has an account without a valid user name and password",
            "make it with kubectl create secret docker-registry",
        ) from None
    return account


class Login:
    """Handles the challenges of one registry for one repository; its token service needs https unless `plain`."""

    def __init__(
        self, account: Account, repository: str, *, plain: bool, actions: str = "pull"
    ) -> None:
        self._account = account
        self._scope = f"repository:{repository}:{actions}"
        self._plain = plain
        self._header: dict[str, str] = {}

    def headers(self) -> dict[str, str]:
        """Return the header from the last challenge; initially {}."""
        return self._header

    async def renew(self, session: aiohttp.ClientSession, challenge: str) -> bool:
        """Authenticate as challenged: Basic, or a new token, which expires after minutes; raises SourceUnreachable."""
        kind, _, rest = challenge.partition(" ")
        before = self._header
        if kind.lower() == "basic":
            self._header = self._account.header()
        elif kind.lower() == "bearer":
            self._header = await self._token(session, dict(_PARAMETER.findall(rest)))
        return bool(self._header) and (self._header != before or kind.lower() == "bearer")

    async def _token(
        self, session: aiohttp.ClientSession, challenge: dict[str, str]
    ) -> dict[str, str]:
        realm = challenge.get("realm", "")
        try:
            scheme = urlsplit(realm).scheme
        except ValueError:
            raise unreachable(f"the registry's token service {realm!r} has no address") from None
        if scheme != "https" and not self._plain:
            raise unreachable(f"the registry's token service {realm!r} is not behind https")
        query = {"scope": self._scope}
        if service := challenge.get("service"):
            query["service"] = service
        url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
        async with session.get(
            url, headers=self._account.header(), allow_redirects=False
        ) as response:
            if response.status != 200:
                raise unreachable(
                    f"the registry's token service {realm} answered {response.status}"
                    f" {response.reason or ''}".rstrip(),
                    f"check the credentials in secretRef (keys {OCI.keys})",
                )
            token = _token_in(await read_body(response, realm, _LARGEST_TOKEN))
        if token is None:
            raise unreachable(f"the registry's token service {realm} sends no token")
        return {"Authorization": f"Bearer {token}"}


def _token_in(body: bytes) -> str | None:
    try:
        answer = json.loads(body)
        token = answer.get("token") or answer["access_token"]
        return token if _TOKEN.fullmatch(token) else None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
