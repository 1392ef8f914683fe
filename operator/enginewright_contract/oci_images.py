"""OCI images of artefacts: how their repository is written and how long a push may take, for settings, Jobs and the program that pushes."""

from typing import Final

# A host has a dot, a port, or is localhost: else container runtimes look at Docker Hub
_HOST: Final = r"([a-z0-9-]+(\.[a-z0-9-]+)+(:[0-9]+)?|[a-z0-9-]+:[0-9]+|localhost)"
_PART: Final = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
IMAGE_REPOSITORY: Final = rf"^{_HOST}(/{_PART})+$"
"""Regular expression of repositories such as registry.example.com/team/artefacts; without look-around, for Rust and Go."""
LONGEST_REPOSITORY: Final = 180  # characters, so that a status holds it with a digest
PUSH_SECONDS: Final = 300  # at most, after the work of a Job is done
