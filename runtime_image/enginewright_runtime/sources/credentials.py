"""Credentials of a source: the files of a mounted Secret."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from enginewright_runtime.sources.base import unreachable

AUTHORITY: Final = "ca.crt"  # certificates, in PEM, that are trusted besides the system's


@dataclass(frozen=True)
class Secret:
    """Keys and values; `repr` shows neither, and no message has a value."""

    values: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the files of a folder; no folder means no credentials.

        The Secret is mounted as optional, so that its absence is reported here, as a reason, instead of
        by a pod that never starts.

        Raises:
            StageFailure: SourceUnreachable, when the folder is empty or cannot be read.
        """
        if not folder.is_dir():
            return cls()
        # a mounted Secret has the kubelet's own ..data beside its keys
        keys = sorted(p for p in folder.iterdir() if not p.name.startswith("..") and p.is_file())
        if not keys:
            raise unreachable(
                "the Secret that secretRef names does not exist in this namespace, or is empty",
                "make it with the keys that the address needs",
            )
        return cls({path.name: value for path in keys if (value := _content(path))})

    def get(self, *keys: str) -> str | None:
        """Return the value of the first of these keys that there is."""
        return next((self.values[key] for key in keys if key in self.values), None)

    def one_of(self, *choices: tuple[str, ...], also: tuple[str, ...] = ()) -> None:
        """Check that the keys of one choice are there, unless there is no Secret at all.

        Args:
            *choices: each a set of keys that belong together.
            also: keys that go with any choice, and are enough alone.

        Raises:
            StageFailure: SourceUnreachable, naming the keys that it lacks and those it has.
        """
        whole = any(all(key in self.values for key in choice) for choice in choices)
        begun = any(key in self.values for choice in choices for key in choice)
        if not self.values or whole:
            return
        if not begun and any(key in self.values for key in (*also, AUTHORITY)):
            return
        wanted = ", or ".join(" and ".join(choice) for choice in choices)
        raise unreachable(
            f"the Secret that secretRef names has only {', '.join(self.values)}",
            f"give it the key{'s' if ' ' in wanted else ''} {wanted}",
        )

    def trust(self) -> ssl.SSLContext:
        """Return whom to trust: the system's authorities and those of `ca.crt`.

        Raises:
            StageFailure: SourceUnreachable, when `ca.crt` holds no certificate.
        """
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
