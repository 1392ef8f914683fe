"""Who asks for content: a server may answer others with other content under the same version.

Only a salted scrypt hash of the credentials is recorded, from which they cannot be found out.
"""

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from enginewright_contract.base import canonical_json
from enginewright_contract.schemes import SCHEMES

from enginewright_runtime.remote.credentials import Secret

_SALT_BYTES: Final = 16
# settings of the pod's own identity and of endpoints
_PREFIXES: Final = tuple(prefix for each in SCHEMES for prefix in each.variable_prefixes)


def asker(credentials: Path) -> str:
    """Return an identifier of the Secret in a folder and of the pod's settings, to be recorded.

    Raises:
        StageFailure: SourceUnreachable, for a Secret that cannot be read.
    """
    salt = secrets.token_hex(_SALT_BYTES)
    return f"{salt}:{_hash(credentials, salt)}"


def is_same_asker(recorded: str, credentials: Path) -> bool:
    """Return whether `recorded` is of the same Secret and settings; raises as `asker`."""
    salt, _, digest = recorded.partition(":")
    return hmac.compare_digest(_hash(credentials, salt), digest)


def _hash(credentials: Path, salt: str) -> str:
    settings = {
        name: value for name, value in os.environ.items() if name.startswith(_PREFIXES) and value
    }
    content = canonical_json([Secret.read(credentials).values, settings])
    return hashlib.scrypt(content.encode(), salt=salt.encode(), n=1 << 14, r=8, p=1).hex()
