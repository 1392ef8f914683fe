"""The language of names and sentences: what an engineer of Kubernetes, NVIDIA or ONNX Runtime would write.

A function is a verb, a variable says what it holds, and prose is plain English. One pass reads every file;
`python -m hack.language` prints the places that are to be changed, and ends with 1 if there are any.
"""

import ast
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

REPOSITORY: Final = Path(__file__).resolve().parents[1]
TESTS: Final = REPOSITORY / "tests/unit/test_language.py"  # its examples are violations
CODE: Final = ("operator", "runtime_image", "hack", "bench", "tests")
PROSE: Final = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "charts/**/*")

# words that end like a participle, but are verbs or nouns
NO_PARTICIPLES: Final = frozenset(
    {
        "bed", "breed", "embed", "exceed", "feed", "heed", "hundred", "need", "proceed", "seed",
        "shed", "speed", "spread", "succeed", "weed",
    }
)  # fmt: skip
# participles, past tenses and adverbs that do not end in -ed
PARTICIPLES: Final = frozenset(
    {
        "apart", "began", "begun", "bought", "broken", "brought", "built", "burnt", "came",
        "caught", "chosen", "dealt", "done", "drawn", "driven", "each", "fallen", "fell", "felt",
        "forgotten", "found", "frozen", "gave", "given", "gone", "got", "grew", "grown", "had",
        "held", "hidden", "hung", "kept", "knew", "known", "laid", "led", "left", "lent", "lost",
        "made", "meant", "met", "nested", "overdue", "paid", "ran", "rewritten", "said", "sat",
        "saw", "seen", "sent", "shown", "slept", "sold", "sought", "spent", "stood", "struck",
        "stuck", "taken", "taught", "thought", "thrown", "told", "took", "torn", "unbuilt",
        "understood", "undone", "unknown", "went", "woken", "won", "worn", "written", "wrote",
    }
)  # fmt: skip
VAGUE: Final = frozenset({"each", "found", "known", "wanted"})

PHRASES: Final = {  # pattern in lower case -> remedy
    r"quantis": "write quantize, quantization",
    r"(?:initial|normal|optim|recogn|sanit|serial|synchron|util)is(?:e|ing|ation|er)": "write -ize, -ization",
    r"\b(?:no|some)body\b|\bwho(?:m|ever)\b": "name who or what it is: a client, a user, another process",
    r"\banew\b": "write again, or a new one",
    r"\bsuch an? ": "write this, or name the thing",
    r"\bthat which\b|\bwhatever (?:an?|he|is|it|the|they|was)\b": "name the thing",
    r"\b(?:thereby|therein|thereof|thus|hither|unto)\b": "use a plain conjunction, or a second sentence",
    r", for (?:each|he|it|its|no|one|that|there|these|they|this|those|we) (?:are|can|do|does|had|has|have|is|was|were)\b": (
        "write because or as"
    ),
    r"\b(?:admit|appl\w+|held|refer|verified|verify)\b[\w ]* no more\b": "write no longer",
    r"\bby half\b|\bis believed\b|\bhow \w+ (?:\w+ )?fares?\b": "say what happens",
}
# texts of `changes` in manifests: stores hold them with this spelling, and the same change has the same text in all versions
RECORDED: Final = re.compile(
    r"'batch normalisation'|\bquantisers look\b|\bcannot be quantised\b"
    r"|(?:de)?quantised (?:\{format_count|\d+ (?:bias )?nodes\b)"
)
_SENTINEL: Final = re.compile(r"\bNone: [a-z]")
_COMMENT: Final = re.compile(r"#[^\"'\n]*?\bNone: [a-z]")


class Finding(NamedTuple):
    """One place, and how to mend it."""

    rule: str
    place: str  # file:line
    name: str
    remedy: str


def is_participle(name: str) -> bool:
    """Return whether the first word of a name is a participle or a past tense."""
    word = name.strip("_").partition("_")[0]
    return word in PARTICIPLES or (
        word.endswith("ed") and len(word) > 3 and word not in NO_PARTICIPLES
    )


def judge(text: str, path: str) -> Iterator[Finding]:
    """Yield what is wrong in the text of a Python file."""
    yield from _judge_prose(text, path)
    for number, line in enumerate(text.splitlines(), 1):
        if "None: " in line and _COMMENT.search(line):
            yield _sentinel(f"{path}:{number}")
    for node in ast.walk(ast.parse(text)):
        yield from _judge_node(node, path)


def _judge_node(node: ast.AST, path: str) -> Iterator[Finding]:
    match node:
        case ast.Name(ctx=ast.Store(), id=name) | ast.arg(arg=name) if name in VAGUE:
            yield _vague(name, f"{path}:{node.lineno}")
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) if name in VAGUE:
            yield _vague(str(name), f"{path}:{node.lineno}")
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if is_participle(name):
            decorators = " ".join(map(ast.unparse, node.decorator_list))
            # the name of an override is that of its base, which is reported, or another package's
            if not re.search("property|setter|fixture|override", decorators):
                remedy = "begin with a verb: describe_, is_, has_, count_, find_, on_"
                yield Finding("function", f"{path}:{node.lineno}", name, remedy)
        case ast.Expr(value=ast.Constant(value=str(text))):  # a docstring, of an attribute too
            if sentinel := _SENTINEL.search(text):
                line = node.lineno + text.count("\n", 0, sentinel.start())
                yield _sentinel(f"{path}:{line}")
        case _:
            pass


def _vague(name: str, place: str) -> Finding:
    return Finding("variable", place, name, "name it after what it holds")


def _sentinel(place: str) -> Finding:
    return Finding("sentinel", place, "None: …", "write `or None if …`, or let the type say it")


def _judge_prose(text: str, path: str) -> Iterator[Finding]:
    lower = text.lower()  # flags of a pattern would make it several times slower
    for pattern, remedy in PHRASES.items():
        for match in re.finditer(pattern, lower):
            if not _is_recorded(lower, match):
                line = lower.count("\n", 0, match.start()) + 1
                yield Finding("phrase", f"{path}:{line}", " ".join(match[0].split()), remedy)


def _is_recorded(text: str, match: re.Match[str]) -> bool:
    begin = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", begin)
    line = text[begin:] if end == -1 else text[begin:end]
    place = match.start() - begin
    return any(kept.start() <= place < kept.end() for kept in RECORDED.finditer(line))


def find_all() -> Iterator[Finding]:
    """Yield what is wrong in all files of the repository but this one, which has the words."""
    for path in chain.from_iterable(sorted((REPOSITORY / folder).rglob("*.py")) for folder in CODE):
        if path not in {Path(__file__), TESTS}:
            yield from judge(path.read_text(), str(path.relative_to(REPOSITORY)))
    for path in chain.from_iterable(sorted(REPOSITORY.glob(pattern)) for pattern in PROSE):
        if path.is_file():
            yield from _judge_prose(path.read_text(), str(path.relative_to(REPOSITORY)))


def main() -> int:
    """Print the findings, one a line, and return the exit code."""
    findings = list(find_all())
    for finding in findings:
        print(f"{finding.place}: {finding.name!r}: {finding.remedy}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
