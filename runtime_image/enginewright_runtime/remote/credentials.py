"""Credentials of a source: the files of a mounted Secret."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from enginewright_runtime.remote.failures import unreachable

AUTHORITY: Final = "ca.crt"  # PEM certificates that are trusted besides the system's


@dataclass(frozen=True)
class Secret:
    """Keys and values; `repr` shows neither, and messages contain no values."""

    values: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the files of a folder; without the folder there are no credentials.

        Raises StageFailure, SourceUnreachable, if the folder is empty or cannot be read: pods mount the Secret
        as optional, because a missing one that is not would block their start without a reason.
        """
        if not folder.is_dir():
            return cls()
        # the kubelet adds ..data to a mounted Secret
        keys = sorted(p for p in folder.iterdir() if not p.name.startswith("..") and p.is_file())
        if not keys:
            raise unreachable(
                "the Secret that secretRef names does not exist in this namespace, or is empty",
                "make it with the keys that the address needs",
            )
        return cls({path.name: value for path in keys if (value := _content(path))})

    def get(self, *keys: str) -> str | None:
        """Return the value of the first existing key, if any."""
        return next((self.values[key] for key in keys if key in self.values), None)

    def one_of(self, *choices: tuple[str, ...], also: tuple[str, ...] = ()) -> None:
        """Raise StageFailure, SourceUnreachable, unless all keys of one choice exist or there is no Secret.

        Keys in `also` may accompany any choice, or be used alone.
        """
        complete = any(all(key in self.values for key in choice) for choice in choices)
        partial = any(key in self.values for choice in choices for key in choice)
        if not self.values or complete:
            return
        if not partial and any(key in self.values for key in (*also, AUTHORITY)):
            return
        required = ", or ".join(" and ".join(choice) for choice in choices)
        raise unreachable(
            f"the Secret that secretRef names has only {', '.join(self.values)}",
            f"give it the key{'s' if ' ' in required else ''} {required}",
        )

    def trust(self) -> ssl.SSLContext:
        """Return a context that trusts the system's authorities and `ca.crt`; raises SourceUnreachable."""
        context = ssl.create_default_context()
        if authority := self.get(AUTHORITY):
            try:
                context.load_verify_locations(cadata=authority)
            except (ssl.SSLError, ValueError) as error:
                raise unreachable(
                    f"the key {AUTHORITY} of the Secret holds no certificate in PEM",
                    "give it the certificate of the authority that signed the server's",
                ) from error
        return context


def _content(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is no text"
        raise unreachable(f"cannot read the key {path.name!r} of the Secret: {cause}") from error
