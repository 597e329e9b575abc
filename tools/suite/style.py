"""Wording of the tree: docstrings, messages, comments, names, pages and commit subjects. Run by .ci/lint.

style.py [--all] [--lower]: fails when a rule has more hits than style.json allows. Text that is older than a rule may stay
until its file is rewritten; new text may not add to it. --all prints every hit; --lower writes the counts that have fallen.
A line that quotes a foreign wording ends in ``style: ok``. Class names and commit subjects have no allowance.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = Path(__file__).with_suffix(".json")
"""Rule -> hits that the tree may have: the counts only fall."""


@dataclass(frozen=True)
class Rule:
    """A pattern that is wrong in some kinds of text, and what to write instead."""

    name: str
    kinds: frozenset[str]
    pattern: re.Pattern[str]
    remedy: str


PROSE = frozenset({"docstring", "message", "comment", "page"})
RULES = tuple(
    Rule(name, frozenset(kinds), re.compile(pattern), remedy)
    for name, kinds, pattern, remedy in (
        (
            "first word",
            {"summary"},
            r"^(Have|Let|Take note|Be|Whether|What|Who|That|As|Those|Where|How|Why|Which)\b",
            "a verb (Return, Send, Wait), or a noun for a class or a module",
        ),
        ("person", PROSE, r"\b([Ww]hoever|[Nn]obody|[Ss]omebody)\b", "name it: the rank, the caller, the agent"),
        (
            "who",
            PROSE,
            r"\b[Ww]ho (stays?|comes?|leaves?|waits?|starts?|asks?|reads?|holds?|is (who|told|fresh|there|new|elsewhere))\b",
            "the rank that, which rank",
        ),
        (
            "told",
            PROSE,
            r"\b(is|are|was|were|be|been) told\b|\btells? of\b|\bis said\b|\bsays? so\b",
            "send, notify, report, print",
        ),
        ("fresh", PROSE, r"\b[Ff]resh (ranks?|ones?|process(es)?)\b", "new rank"),
        ("from on", PROSE, r"\bfrom (here|then|\d+|nine|there) on\b", "after that; with 33 or more hosts"),
        (
            "so many",
            PROSE,
            r"\bso (many|much|long) (as|of|ranks|bytes|seconds|steps|minutes|rows|digits)\b|\bafter so many\b",
            "the number: after N failures",
        ),
        (
            "old word",
            PROSE,
            r"\b(shall|anew|lest|whereof|thereof|herein)\b|\bas ever\b|\bat last\b|\bin vain\b",
            "must, again, as before, most recently, without effect",
        ),
        ("none", PROSE, r"\b([Ii]t|[Tt]his|[Tt]hat) is none\b|\bis none of\b", "there is no X; X does not exist"),
        ("long sentence", {"sentence"}, r"^(?:\S+ ){40}", "split it: a sentence has at most 40 words"),
        (
            "local name",
            {"local"},
            r"^(each|found|said|asked|given|told|own|one|why|what|there|theirs|mine|those|wanted|looked|known)$",
            "say what the value is: rank, path, failures",
        ),
        (
            "function name",
            {"function"},
            r"^_*(told|tells?|hears?|heard|takes?|looks?|settled?|asks?|asked|said|say|ended|found|given|ways?|lets?|mend)(_|$)",
            "the field's verb: send, receive, accept, poll, resolve, request",
        ),
        ("test name", {"test"}, r"^.{61,}$", "at most 60 characters"),
    )
)
SUFFIXES = {".py", ".md", ".cc", ".h", ".cu", ".cuh"}
PRODUCT = ("hvd_kernel/", "magics/", "widgets/")
ASIDE = ("docs/decisions/", "tools/suite/style.py")
"""Records in the words of their time, and the patterns themselves."""
PLACES = (*PRODUCT, "native/", "tools/", "docs/", "tests/", "README.md", "CONTRIBUTING.md")

HOROVODS = "each framework has it under Horovod's name: `hvd.Compression`"
SHARED_CLASSES = {  # a name that classes of several files have -> why
    "Compression": HOROVODS,
    "FP16Compressor": HOROVODS,
    "BF16Compressor": HOROVODS,
    "HostDiscovery": "Horovod's class to derive from, and the protocol of a source of hosts: one interface",
    "RayHostDiscovery": "Horovod's, of horovod.ray.elastic and of horovod.ray.elastic_v2",
    "TorchEstimator": "Horovod's, of horovod.spark.torch and of horovod.spark.lightning",
    "TorchModel": "Horovod's: the model that each of these estimators returns",
}

SUBJECTS_SINCE = "f4078e82b4ec2c4c4ee6591fa50389a932a6cdd0"
"""The commits after this one are checked; those before it were, by the rules of their time."""
LONGEST_SUBJECT = 72
SUBJECT = re.compile(r"[a-z0-9_./-]+(, [a-z0-9_./-]+)*: \S.*[^.\s]")
NO_COMMAND = re.compile(
    r".*?: (an?|all|another|both|each|every\w*|he|how|its?|no|nobody|nothing|of|one|our|several|she|some|that|the|their|they"
    r"|this|those|three|two|we|what\w*|when|where|which|who\w*) .*",
    re.IGNORECASE,
)

Text = tuple[str, int, str]
"""Kind, line and text."""


def python_texts(source: str) -> Iterator[Text]:
    """Yield the docstrings, messages, comments and names of a Python file."""
    docstrings = set()
    nodes = list(ast.walk(ast.parse(source)))
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) and (
            text := ast.get_docstring(node)
        ):
            docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
            yield "summary", node.body[0].lineno, text.partition("\n")[0]
            yield "docstring", node.body[0].lineno, text
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield "function", node.lineno, node.name
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if " " in node.value:
                yield "message", node.lineno, node.value
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield "local", node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield "local", node.lineno, node.arg
    for number, line in enumerate(source.splitlines(), 1):
        if comment := re.search(r"(?:^|\s)# (.*)", line):
            yield "comment", number, comment[1]


def native_texts(source: str) -> Iterator[Text]:
    """Yield the comments of a C++ file."""
    for number, line in enumerate(source.splitlines(), 1):
        if comment := re.search(r"//\s?(.*)", line):
            yield "comment", number, comment[1]


def page_texts(source: str) -> Iterator[Text]:
    """Yield the lines of a page that are neither code nor rows of a table."""
    is_code = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith(("    ", "|")):
            yield "page", number, line
            yield from (("sentence", number, sentence) for sentence in re.split(r"(?<=[.!?:;]) ", line))


def test_texts(source: str) -> Iterator[Text]:
    """Yield the names of the tests of a Python file."""
    for number, line in enumerate(source.splitlines(), 1):
        if name := re.match(r"\s*(?:async )?def (test_\w+)", line):
            yield "test", number, name[1]


def texts(file: str, source: str) -> Iterator[Text]:
    """Yield what the rules are about in a file: of tests, their names alone."""
    suffix = Path(file).suffix
    if file.startswith("tests/"):
        return test_texts(source) if suffix == ".py" else iter(())
    return {".py": python_texts, ".md": page_texts}.get(suffix, native_texts)(source)


def hits(file: str, source: str) -> Iterator[tuple[str, str]]:
    """Yield the name of the rule and a line to print, for each hit of a file."""
    lines = source.splitlines()
    for kind, number, text in texts(file, source):
        if "style: ok" in text or "style: ok" in lines[number - 1]:
            continue
        for rule in RULES:
            for match in rule.pattern.finditer(text) if kind in rule.kinds else ():
                yield rule.name, f"{file}:{number}: {rule.name} ({rule.remedy}): {match[0][:100]}"


def shared_classes(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return the public top-level classes whose name several files define, with these files."""
    homes = defaultdict(set)
    for file, source in sources.items():
        for name in re.findall(r"^class ([A-Za-z]\w*)", source, re.MULTILINE):
            homes[name].add(file)
    return {name: sorted(files) for name, files in homes.items() if len(files) > 1}


def wrong_classes(sources: dict[str, str]) -> list[str]:
    """Return a line for each class name that stands for several things, and for each needless exception."""
    shared = shared_classes(sources)
    lines = [
        f"class {name} in {', '.join(files)}: use two names, or one class"
        for name, files in sorted(shared.items())
        if name not in SHARED_CLASSES
    ]
    return lines + [f"{name}: remove it from SHARED_CLASSES" for name in sorted(SHARED_CLASSES.keys() - shared)]


def wrong_subjects(subjects: Iterable[str]) -> list[str]:
    """Return what is wrong with each commit subject that is not ``room: what to do``, with at most 72 characters."""
    lines = []
    for subject in subjects:
        if len(subject) > LONGEST_SUBJECT:
            lines.append(f"{subject!r} has {len(subject)} characters, more than {LONGEST_SUBJECT}")
        elif not SUBJECT.fullmatch(subject):
            lines.append(f"{subject!r} is not 'room: what changes'")
        elif NO_COMMAND.fullmatch(subject):
            lines.append(f"{subject!r} does not begin with a verb, as in 'native: form a torus of many hosts'")
    return lines


def subjects() -> list[str]:
    """Return the subjects of the commits since the rules, or none if the clone does not go back that far."""
    command = ["git", "log", "--no-merges", "--format=%s", f"{SUBJECTS_SINCE}..HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()


def read_sources() -> dict[str, str]:
    """Return the texts of the tracked files by path, without links, built pages and records of decisions."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    files = [
        name
        for name in listed
        if name.startswith(PLACES) and Path(name).suffix in SUFFIXES and not name.startswith(ASIDE)
    ]
    return {name: (ROOT / name).read_text() for name in files if (ROOT / name).is_file()}


def main(arguments: list[str]) -> int:
    """Print what is wrong, and return the exit status."""
    sources = read_sources()
    everything = [hit for file, source in sources.items() for hit in hits(file, source)]
    counts = Counter(name for name, _ in everything)
    allowed: dict[str, int] = json.loads(ALLOWED.read_text()) if ALLOWED.exists() else {}
    if "--lower" in arguments:
        allowed = {rule.name: min(counts[rule.name], allowed.get(rule.name, counts[rule.name])) for rule in RULES}
        ALLOWED.write_text(json.dumps(allowed, indent=1) + "\n")
    over = [rule.name for rule in RULES if counts[rule.name] > allowed.get(rule.name, 0)]
    lines = [line for name, line in everything if name in over or "--all" in arguments]
    lines += [f"{name}: {counts[name]} hits, {allowed.get(name, 0)} allowed (tools/suite/style.json)" for name in over]
    product = {file: source for file, source in sources.items() if file.startswith(PRODUCT) and file.endswith(".py")}
    wrong = wrong_classes(product) + wrong_subjects(subjects())
    print("\n".join(lines + wrong), end="\n" if lines or wrong else "")
    return 1 if over or wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
