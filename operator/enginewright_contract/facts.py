"""Facts in full reports that other processes read back; all others are for people only."""

from enginewright_contract.base import Message
from enginewright_contract.manifest import ArtifactFile, Latency
from enginewright_contract.verdict import FallbackVerdict


class FetchFacts(Message):
    """Files that stage `fetch` has written."""

    files: tuple[ArtifactFile, ...]  # the .onnx file first
    digest: str  # of the model

    @property
    def size_bytes(self) -> int:
        """Return the size of all files."""
        return sum(file.size_bytes for file in self.files)


class ParseFacts(Message):
    """What a parser took as a whole."""

    library: str  # that spoke, with its version
    nodes_total: int  # compute nodes


class AnsweredTensor(Message):
    """One output in an answer."""

    name: str
    datatype: str  # of the Open Inference Protocol
    shape: tuple[int, ...]
    values: tuple[str, ...]  # the first ones


class RequestAnswer(Message):
    """The answer to a request of preflight."""

    status: int  # of HTTP
    message: str = ""  # of an error
    outputs: tuple[AnsweredTensor, ...] = ()


class ExamineFacts(Message):
    """How a prepared model ran on the backend that will serve it."""

    placement: FallbackVerdict
    elsewhere: tuple[str, ...]  # labels of all nodes on another provider
    latency: Latency | None
    answer: RequestAnswer | None = None
