"""Words of our own that have given way to the field's: none of them is in code, docs or messages any more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hvdtest.launch import TESTS

ROOT = TESTS.parent
PLACES = (
    *("hvd_kernel", "magics", "widgets", "native", "tools", "notebooks", "tests"),
    *("docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
)
SUFFIXES = {".py", ".pyi", ".md", ".cc", ".h", ".cu", ".cuh", ".js", ".toml", ".sh", ".json", ".ipynb"}
OLD = ROOT / "docs" / "decisions"
"""Records of what was decided then, in the words of then."""

RETIRED = {  # as words of a name or a sentence, in any case -> the field's
    "appointment": "rendezvous",
    "autopsy": "post-mortem",
    "conductor": "controller",
    "controller world": "controller side",
    "crew": "communicator, agents",
    "desk": "context, acceptor",
    "ears": "stall monitor",
    "engine world": "rank side",
    "errand": "task",
    "ferry": "cross-device staging",
    "fuser": "fusion manager",
    "ground of": "staged buffer of",
    "guilty": "root cause, the rank that failed first",
    "heal": "reset the communicator",
    "healed": "reset",
    "household": "device context",
    "keeper": "reserved port, supervisor",
    "keepsake": "replicated variable",
    "kept cluster": "detached cluster",
    "lenient": "error policy",
    "lent memory": "IPC buffer",
    "letter box": "messages",
    "left aside": "ignored",
    "lobby": "handshake acceptor",
    "lookout": "stall monitor",
    "names aside": "concurrent introspection",
    "parcel": "serialization",
    "patrol": "stall timer",
    "peer memory": "imported buffer",
    "renewed": "reset",
    "reunion": "rendezvous",
    "reunite": "rendezvous",
    "seat": "placement",
    "see out": "drain",
    "shelf": "shared-memory buffer",
    "slot order": "response cache",
    "tell all": "allgather",
    "tenant": "client",
    "tidings": "response list",
    "visitor": "client connection",
    "witness": "recorder",
}
TYPES = {  # names of native/ that are English words elsewhere -> the field's
    "Attempt": "candidate",
    "Exercise": "self-test case",
    "Facts": "peer info",
    "Form": "algorithm",
    "Gate": "serialising proxy",
    "Ground": "placement",
    "Guest": "connection",
    "Laid": "staged strip",
    "Lane": "fast path",
    "Leader": "coordinator",
    "Mark": "event",
    "Pace": "in-flight limiter",
    "Party": "bootstrap group",
    "Relay": "tree node",
    "Sentence": "schedule",
    "Strip": "chunk plan",
    "Together": "fused response",
    "Trial": "self-test",
    "Verdict": "response",
    "Watch": "failure detector",
    "Way": "direction, algorithm, candidate",
}
CLASSES = {  # the same for Python
    "Ears": "stall monitor",
    "Errand": "task",
    "Holder": "cluster manager",
    "Kept": "DetachedCluster",
    "Meet": "Rendezvous",
    "Meeting": "Rendezvous",
    "Met": "CommunicatorReady",
    "Neighbours": "OtherRanks",
    "Person": "prompt front end",
    "Verb": "request handler",
    "Voice": "output multiplexer",
    "Words": "string table",
}
NAMES = {  # of Python that are, or contain, English words elsewhere -> the field's
    "MEET_S": "RENDEZVOUS_S",
    "has_met": "has_joined",
    "kept_on": "detached_on",
    "kept_ranks": "detached_ranks",
    "meet_again": "reset_communicator",
    "more_words": "max_arguments",
    "tell_neighbours": "tell_other_ranks",
}
FILES = {  # names of files, with any suffix -> what they are about, by the field's name
    "again": "dispatch",
    "ahead": "prefetch",
    "alone": "cross_device_copy",
    "bell": "doorbell",
    "exercise": "self_test",
    "gate": "serialising_proxy",
    "holder": "cluster_manager",
    "kept": "detached cluster",
    "ladder": "escalation",
    "lane": "fast_path",
    "leader": "coordinator",
    "mark": "event",
    "meeting": "rendezvous",
    "neighbours": "other_ranks",
    "pace": "limiter",
    "party": "bootstrap_group",
    "plain": "user_error",
    "probes": "build_info",
    "relay": "tree_node",
    "screen": "writer",
    "short_way": "fast_path",
    "shown": "output_buffer",
    "starts": "pickling",
    "team": "group",
    "trial": "self_test",
    "turn": "progress_engine",
    "verbs": "handlers",
    "voice": "output multiplexer",
    "word": "command",
    "words": "shell_words, subcommands, describe",
}
DECLARED = {  # where declarations are -> how they begin, and what they are not called
    "native": (r"class|struct|enum class|using", TYPES),
    "hvd_kernel": (r"class", CLASSES),
    "magics": (r"class", CLASSES),
    "widgets": (r"class", CLASSES),
}


@cache
def texts() -> dict[str, str]:
    found = {}
    for place in PLACES:
        path = ROOT / place
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            generated = {"static", "schemas"} & set(file.parts) or not file.is_file()
            if file.suffix in SUFFIXES and not generated and OLD not in file.parents and file != Path(__file__):
                found[str(file.relative_to(ROOT))] = file.read_text()
    return found


def words_of(text: str) -> str:
    """A text as lower-case words: LentMemory, lent_memory and lent-memory are ``lent memory``."""
    return re.sub(r"[_\-]|(?<=[a-z0-9])(?=[A-Z])", " ", text).lower()


@cache
def in_words() -> dict[str, str]:
    return {file: words_of(text) for file, text in texts().items()}


def has(word: str, words: str) -> bool:
    """Whether a retired word is among them, also in the plural."""
    return word in words and re.search(rf"\b{word}s?\b", words) is not None


def places_of(word: str) -> set[str]:
    """The files in which a retired word is."""
    return {file for file, words in in_words().items() if has(word, words)}


def test_no_retired_word_comes_back() -> None:
    found = {word: places for word in RETIRED if (places := places_of(word))}
    said = [f"{word} in {', '.join(sorted(places))}: say {RETIRED[word]}" for word, places in found.items()]
    assert not said, "\n".join(said)


def types() -> Iterator[str]:
    for file, text in texts().items():
        begin, retired = DECLARED.get(Path(file).parts[0], ("", {}))
        if retired:
            declared = re.findall(rf"^\s*(?:{begin}) ({'|'.join(retired)})\b", text, re.MULTILINE)
            yield from (f"{name} in {file}: say {retired[name]}" for name in declared)


def test_no_retired_type_comes_back() -> None:
    assert not list(types())


def test_no_retired_name_comes_back() -> None:
    known = re.compile(rf"(?<![A-Za-z0-9])_?({'|'.join(NAMES)})\b")
    python = {file: text for file, text in texts().items() if file.endswith(".py") and not file.startswith("tests/")}
    found = sorted({(file, name) for file, text in python.items() for name in known.findall(text)})
    assert not found, "\n".join(f"{name} in {file}: say {NAMES[name]}" for file, name in found)


def test_no_file_has_a_retired_name() -> None:
    product = (file for file in texts() if Path(file).parts[0] in {*DECLARED, "tools"})
    said = [f"{file}: say {FILES[Path(file).stem]}" for file in product if Path(file).stem in FILES]
    assert not said, "\n".join(said)


@pytest.mark.parametrize(
    "text", ["LentMemory", "lent_memory", "Lent-memory", "the lent memory of", "class LentMemoryView"]
)
def test_a_word_is_found_however_it_is_written(text: str) -> None:
    assert has("lent memory", words_of(text))
    assert not has("lent memory", words_of(text.replace("emory", "emorial")))


def entries() -> list[list[str]]:
    """Word and text of each entry of the glossary."""
    text = (ROOT / "docs" / "glossary.md").read_text()
    return [list(each) for each in re.findall(r"^- \*\*(.+?)\*\*: (.+\n  .+ \*\(.+\)\*)$", text, re.MULTILINE)]


def test_the_glossary_has_its_words_in_order_each_with_its_source() -> None:
    words = [word.lower() for word, _ in entries()]
    assert words == sorted(words)
    assert len(words) == len(set(words)) == (ROOT / "docs" / "glossary.md").read_text().count("\n- ") == 60
    assert all(text.count("\n") == 1 and text[0].isupper() for _, text in entries())
