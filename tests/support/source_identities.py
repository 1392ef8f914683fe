"""Identity services that clouds provide to pods: metadata services and token exchanges.

The real ones answer only inside their clouds; the stores that are asked with what these give are
real.
"""

import json
from dataclasses import dataclass, field

from tests.support.source_servers import PASSWORD, USERNAME
from tests.support.source_web import Answer, ScriptedServer, Seen

ROLE = "reader"
_ROLES = "/latest/meta-data/iam/security-credentials/"
_LONG_AGO = "2026-01-01T00:00:00Z"
FEDERATED_TOKEN = "federated-t0ken"


@dataclass
class Identities:
    """Answers of all of them, and who asked for them."""

    server: ScriptedServer
    asked: list[str] = field(default_factory=list)

    def answer(self, seen: Seen) -> Answer:
        path = seen.path.partition("?")[0]
        self.asked.append(f"{seen.method} {path}")
        return self._answers.get(f"{seen.method} {path}", (404, {}, b""))

    @property
    def _answers(self) -> dict[str, Answer]:
        role = f"GET {_ROLES}{ROLE}"
        return {
            "PUT /latest/api/token": (200, {}, b"imds-session"),
            f"GET {_ROLES}": (200, {}, ROLE.encode()),
            role: _json(Code="Success", Type="AWS-HMAC", LastUpdated=_LONG_AGO, **_keys()),
            "GET /computeMetadata/v1/instance/service-accounts/default/token": _json(
                access_token="google-t0ken", expires_in=3600, token_type="Bearer"
            ),
            "GET /eks": _json(**_keys()),
            "POST /sts": (200, {"Content-Type": "text/xml"}, _STS.encode()),
            "POST /tenant/oauth2/v2.0/token": _json(
                access_token="entra-t0ken", expires_in=3600, token_type="Bearer"
            ),
        }


def _keys() -> dict[str, str]:
    return {
        "AccessKeyId": USERNAME,
        "SecretAccessKey": PASSWORD,
        "Token": "session-t0ken",
        "Expiration": "2099-01-01T00:00:00Z",
    }


def _json(**values: object) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(values).encode()


_STS = f"""<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>{USERNAME}</AccessKeyId><SecretAccessKey>{PASSWORD}</SecretAccessKey>
<SessionToken>session-t0ken</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""
