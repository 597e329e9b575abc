"""``hvdrun job plan|run|write``: a platform's file as a table, as a run, or as another platform's file."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.jobs import JobSpec, formats, platform_fields, writers
from hvd_kernel.jobs.here import of_words
from hvd_kernel.jobs.plan import as_json, as_text, plan
from hvd_kernel.jobs.shell_lines import join
from hvd_kernel.jobs.spec import NO_COMMAND, quantity
from hvd_kernel.settings import gpus

_USAGE = """hvdrun job plan|run|write FILE [flags]
       hvdrun job plan|run -- mpirun -np 4 python train.py"""
_HELP = {
    "plan": "print the tasks: rank, host or replica, cores, memory, GPUs, command",
    "run": "run them, on this machine or in the current allocation",
    "write": "print another platform's file for the same job",
}


STRICT = "the {kind} file would lack parts of the job, so it is not written (--strict):"
"""First line of the error of ``job write --strict``; a line for each part follows."""
NEEDS_FOLDER = "hvdrun job: --kind {kind} writes several files: name a folder for them with -o FOLDER"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"hvdrun job: {message}. See `hvdrun job --help`")


@dataclass(frozen=True)
class JobRequest:
    """A parsed line of `hvdrun job`. ``line``: the command after ``--``; ``flags``: the verb's flags by name."""

    verb: str
    files: list[str] = field(default_factory=list)
    line: list[str] = field(default_factory=list)
    flags: dict[str, Any] = field(default_factory=dict)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the three verbs."""
    result = _Parser("hvdrun job", usage=_USAGE, allow_abbrev=False)
    verbs = result.add_subparsers(dest="verb", required=True, metavar="plan|run|write")
    kinds = [reader.kind for reader in formats.READERS]
    texts = ", ".join(sorted({reader.text for reader in formats.READERS}))
    for verb, text in _HELP.items():
        verb_parser = verbs.add_parser(verb, help=text, description=text, allow_abbrev=False)
        verb_parser.add_argument("files", nargs="*", metavar="FILE", help=texts)
        verb_parser.add_argument(
            "--from", dest="kind", choices=kinds, default="", help="kind of FILE (default: recognised from its text)"
        )
    verbs.choices["plan"].add_argument("--format", choices=("text", "json"), default="text")
    run = verbs.choices["run"]
    run.add_argument("-np", dest="np", type=int, metavar="N", help="fewer ranks than the file has")
    run.add_argument("--gpus", metavar="auto|all|0,1|none", help="devices of the ranks here, in place of the file's")
    run.add_argument("--mpi", action="store_true", help="start the ranks with mpiexec, with the -mca of an mpirun line")
    run.add_argument("--quiet", action="store_true", help="print no warnings")
    run.add_argument("--verbose", action="store_true", help="print each step")
    write = verbs.choices["write"]
    write.add_argument("--kind", dest="to", required=True, choices=[*writers.WRITERS], help="the platform")
    write.add_argument("--image", help="container image, where FILE names none")
    write.add_argument("--name", help="the job's name, where FILE has none")
    write.add_argument("--shm", metavar="SIZE", help=f"size of /dev/shm, as 8Gi{_only('shm_bytes')}")
    write.add_argument("--port", type=int, metavar="PORT", help=f"port of the rendezvous{_only('port')}")
    write.add_argument(
        "--strict", action="store_true", help="write nothing, and fail, if OUT would lack a part of FILE"
    )
    write.add_argument("--runtime", metavar="NAME", help=f"ClusterTrainingRuntime with an mpi policy{_only('runtime')}")
    write.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="write to this file, or folder of files, readable only by you, instead of to stdout",
    )
    return result


def _only(option: str) -> str:
    return f" ({', '.join(writers.OPTION_KINDS[option])})"


def parse(words: Sequence[str]) -> JobRequest:
    """Parse the words after ``hvdrun job``.

    Raises
    ------
    UsageError
        Naming the word that is wrong.
    """
    at = words.index("--") if "--" in words else len(words)
    flags = vars(parser().parse_args(words[:at]))
    return JobRequest(flags.pop("verb"), flags.pop("files"), [*words[at + 1 :]], flags)


def main(words: Sequence[str]) -> int:
    """Run a line of ``hvdrun job``; return the exit status."""
    request = parse(words)
    return _VERBS[request.verb](request)


def _spec(request: JobRequest) -> JobSpec:
    """Return the job; with a file, the line after ``--`` is its command."""
    spec = of_words(request.files, [] if request.files else request.line, request.flags["kind"])
    if request.files and request.line:
        warnings = tuple(warning for warning in spec.warnings if not warning.endswith(NO_COMMAND))
        spec = msgspec.structs.replace(spec, steps=(join(request.line),), warnings=warnings)
    return spec


def _plan(request: JobRequest) -> int:
    table = plan(_spec(request))
    sys.stdout.write((as_json if request.flags["format"] == "json" else as_text)(table) + "\n")
    return 0


def _run(request: JobRequest) -> int:
    from hvd_kernel.launch.cli.job_execution import execute  # noqa: PLC0415 - a plan starts nothing

    spec = _spec(request)
    flags = request.flags
    if flags["np"] is not None:
        spec = msgspec.structs.replace(spec, np=flags["np"])
    if flags["quiet"]:
        spec = msgspec.structs.replace(spec, warnings=(), platform_fields=())
    choice = gpus.checked(flags["gpus"]) if flags["gpus"] else ""
    return execute(spec, choice=choice, use_mpi=flags["mpi"], verbose=flags["verbose"])


def _write(request: JobRequest) -> int:
    spec, flags = _spec(request), request.flags
    fields: dict[str, Any] = {name: flags[name] for name in ("image", "name") if flags[name]}
    options = {name: flags[name] for name in ("port", "runtime") if flags[name]}
    if flags["shm"]:
        options["shm_bytes"] = _bytes(flags["shm"])
    if flags["to"] in writers.OPTION_KINDS["secret"]:
        options["secret"] = secrets.token_hex(32)
    if flags["image"]:
        others = [field for field in spec.platform_fields if field.name != platform_fields.LAUNCHER_IMAGE]
        fields["platform_fields"] = tuple(others)
    written = writers.convert(msgspec.structs.replace(spec, **fields), flags["to"], writers.WriterOptions(**options))
    if written.files and flags["output"] is None:
        raise UsageError(NEEDS_FOLDER.format(kind=flags["to"]))
    if flags["strict"] and written.losses:
        raise ConfigError("\n  ".join([STRICT.format(kind=flags["to"]), *written.losses]))
    sys.stderr.write("".join(f"hvdrun: warning: {sentence}\n" for sentence in written.losses))
    if flags["output"] is None:
        sys.stdout.write(written.text)
        return 0
    _save(Path(flags["output"]), written)
    return 0


def _save(output: Path, written: writers.Written) -> None:
    """Write a file, or a folder's files."""
    texts = {output / name: text for name, text in written.files.items()} or {output: written.text}
    try:
        if written.files:
            output.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)  # a Secret is in some
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
    except OSError as error:
        raise ConfigError(f"{error.filename or output} cannot be written: {error.strerror}.") from None


def _bytes(text: str) -> int:
    try:
        return int(quantity(text))
    except ValueError as error:
        raise UsageError(f"hvdrun job: --shm: {error}") from None


_VERBS: dict[str, Callable[[JobRequest], int]] = {"plan": _plan, "run": _run, "write": _write}
