"""The words behind %hvd. A new one is a row of this table and a function in a file of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_kernel import tracking
from hvd_kernel.diagnosis.machine import examine, report
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.magics import ipyparallel_client
from hvd_kernel.magics.commands import attach, life, respawn, variables
from hvd_kernel.magics.commands.check import check
from hvd_kernel.magics.commands.clean import clean
from hvd_kernel.magics.commands.stacks import stacks
from hvd_kernel.magics.context import Desk
from hvd_kernel.magics.options import Options, nearest

TIMELINE = "hvd-timeline.json"
"""The file of a timeline that is given no other, in the notebook's folder."""

MANY = 1000
"""Words that may follow where they are names of variables."""


@dataclass(frozen=True)
class Verb:
    """What a word does: ``act`` is given the options; its further words are ``options.words[1:]``."""

    act: Callable[[Desk, Options], None]
    usage: str  # as it is written, for %hvd? and for errors
    doc: str
    more_words: int = 0  # how many words may follow
    anytime: bool = False  # also while a cell runs (from a subshell, or beside a background cell)


def _help(desk: Desk, _options: Options) -> None:
    desk.screen().say(usage())


def _doctor(desk: Desk, _options: Options) -> None:
    desk.screen().say(report(examine()))


def _track(desk: Desk, options: Options) -> None:
    words = options.words[1:]
    if not words or words[0] == "show":
        chosen = tracking.commanded(words[1:] or [os.environ.get(tracking.TRACK, "")], Path.cwd())
        desk.screen().say(tracking.page(chosen))
        return
    chosen = tracking.commanded(words, Path.cwd(), per_rank=options.per_rank)
    with desk.holder.use():
        session = desk.holder.session
        dropped = tracking.tell(session.ask, chosen) if session is not None else ""
        os.environ[tracking.TRACK] = str(chosen)  # of ranks that start later
    desk.screen().say(tracking.sentence(chosen))
    desk.screen().say(dropped, "stderr")


def _timeline(desk: Desk, options: Options) -> None:
    word, path, *_ = (*(options.words[1:] or ("show",)), "")
    if word not in _TIMELINE:
        usage = "write %hvd timeline start [FILE], stop, or show [FILE]"
        raise UsageError(f"%hvd timeline: {word!r} is not understood{nearest(word, [*_TIMELINE])}; {usage}")
    _TIMELINE[word](desk, options, path)


def _timeline_start(desk: Desk, options: Options, name: str) -> None:
    path = Path(name or TIMELINE).absolute()
    if not options.force and path.is_file() and not path.read_bytes()[:40].startswith(b'[\n{"name":"process_name"'):
        raise UsageError(f"%hvd timeline: {path} is there and is no timeline: name another file, or add --force")
    _told(desk, "start", path=str(path), cycles=options.mark_cycles)
    desk.screen().say(f"rank 0 records into {path}: run cells, then %hvd timeline stop\n")


def _timeline_stop(desk: Desk, _options: Options, name: str) -> None:
    if name:
        raise UsageError(
            f"%hvd timeline stop takes no file, and here is {name}: the one that was named at the start ends"
        )
    if not _told(desk, "tell")["goes_on"]:
        raise UsageError("%hvd timeline: none is recorded; %hvd timeline start begins one")
    _show(desk, _told(desk, "stop"))


def _timeline_show(desk: Desk, _options: Options, name: str) -> None:
    if name:
        _show(desk, {"path": str(Path(name).absolute())})
        return
    known = _told(desk, "tell") if desk.holder.session is not None else {"path": ""}
    if not known["path"]:
        raise UsageError("%hvd timeline: nothing has been recorded; write %hvd timeline start, or show FILE")
    _show(desk, known)


def _told(desk: Desk, do: str, **more: object) -> Mapping[str, Any]:
    """Have rank 0 do something about its timeline, also while a cell runs."""
    answers = desk.holder.current().ask("timeline", [0], {"do": do, **more}, urgent=True)
    if 0 not in answers:
        raise ClusterError("%hvd timeline: rank 0, which writes timelines, is dead; %hvd respawn 0 replaces it")
    content = answers[0][0]
    if content["refused"]:
        raise UsageError(f"%hvd timeline: {content['refused']}")
    return content


def _show(desk: Desk, known: Mapping[str, Any]) -> None:
    from hvd_kernel.widgets import lanes, timeline  # noqa: PLC0415 - a kernel that shows none starts without them

    path = Path(known["path"])
    try:
        if path.stat().st_size > timeline.LARGEST:
            raise UsageError(f"%hvd timeline: {path} is too large to be shown here: open it in {timeline.VIEWERS}")
        recording = timeline.parse(path.read_text())
    except OSError as error:
        where = f" (rank 0 runs on {known['host']}: copy it from there)" if "host" in known else ""
        raise UsageError(f"%hvd timeline: {path} cannot be read: {error.strerror}{where}") from None
    except ValueError as error:
        raise UsageError(f"%hvd timeline: {path}: {error}") from None
    text = f"{path}: {timeline.summary(recording)}zoom into it in {timeline.VIEWERS}\n"
    desk.screen().show({"text/plain": text, "text/html": lanes.page(recording, str(path), text)})


_TIMELINE = {"start": _timeline_start, "stop": _timeline_stop, "show": _timeline_show}


def _job(desk: Desk, options: Options) -> None:
    words = options.words[1:]
    if len(words) != 2 or words[0] != "plan":  # noqa: PLR2004 - a verb and a file
        raise UsageError("%hvd job: write %hvd job plan FILE; %%hvdrun --job FILE runs a cell as the file says")
    from hvd_kernel.jobs.here import of_file  # noqa: PLC0415 - a kernel that reads no such file starts without them
    from hvd_kernel.jobs.plan import as_text, plan  # noqa: PLC0415 - as above

    desk.screen().say(as_text(plan(of_file(Path(words[1])))) + "\n")


VERBS: dict[str, Verb] = {
    "start": Verb(
        life.start,
        "%hvd start -np 4",
        "start 4 ranks (-H, --hostfile, --gpus, --mpi-args, --respawn auto; --keep [NAME]: they outlive this kernel)",
    ),
    "restart": Verb(
        life.restart,
        "%hvd restart",
        "start the same ranks again; their variables are lost (--force: also while a job runs)",
    ),
    "attach": Verb(
        attach.attach,
        "%hvd attach [NAME]",
        "take over ranks that an earlier kernel has started with --keep, with their variables",
        more_words=1,
        anytime=True,
    ),
    "respawn": Verb(
        respawn.act,
        "%hvd respawn [2]",
        "replace dead ranks, the others keep theirs (also --restore model,opt; --force for living ones)",
        more_words=1,
    ),
    "stop": Verb(life.stop, "%hvd stop", "end the ranks (--force: also while a job runs)"),
    "status": Verb(life.status, "%hvd status", "one line per rank", anytime=True),
    "stacks": Verb(stacks, "%hvd stacks", "where every rank is, also while a cell runs (--ranks 2)", anytime=True),
    "vars": Verb(
        variables.show, "%hvd vars", "the ranks' variables, and which ranks agree (%hvd vars a b)", MANY, anytime=True
    ),
    "check": Verb(
        check, "%hvd check model opt", "compare them bit for bit, down to the part that differs (seeds, --strict)", MANY
    ),
    "clean": Verb(
        clean,
        "%hvd clean",
        "remove what clusters of kernels that are gone have left (--dry-run: list; --kept NAME: end kept ranks)",
        anytime=True,
    ),
    "track": Verb(
        _track,
        "%hvd track jsonl tensorboard:runs",
        "write what hvd.log is given there, also mlflow, polyaxon, off (--per-rank; %hvd track show lists the runs)",
        more_words=9,
        anytime=True,
    ),
    "timeline": Verb(
        _timeline,
        "%hvd timeline start [FILE]",
        "record what the core does as a Chrome trace (--mark-cycles); then %hvd timeline stop, or show [FILE]",
        more_words=2,
        anytime=True,
    ),
    "client": Verb(
        ipyparallel_client.act,
        "%hvd client [NAME]",
        "an ipyparallel.Client of the ranks, as rc or NAME: views, maps, AsyncResult, %px",
        more_words=1,
        anytime=True,
    ),
    "job": Verb(
        _job,
        "%hvd job plan FILE",
        "the tasks of a platform's file, as a table (hostfile, polyaxonfile, riseml.yml, a manifest, a script)",
        more_words=2,
        anytime=True,
    ),
    "help": Verb(_help, "%hvd help", "this list", anytime=True),
    "doctor": Verb(_doctor, "%hvd doctor", "what is missing on this machine, and how to get it", anytime=True),
}


def find(options: Options) -> Verb:
    """Return the verb that a line names; without a word it is status.

    Raises
    ------
    UsageError
        If it is none, or too many words follow it.
    """
    name = options.words[0] if options.words else "status"
    verb = VERBS.get(name)
    if verb is None:
        said = " ".join(options.words)
        raise UsageError(f"%hvd: {said!r} is not understood{nearest(name, [*VERBS])}; %hvd help lists the commands")
    if len(options.words) > 1 + verb.more_words:
        raise UsageError(f"%hvd: {' '.join(options.words)!r} has too many words: write {verb.usage}")
    return verb


def usage() -> str:
    """Return the help of %hvd."""
    width = max(len(verb.usage) for verb in VERBS.values())
    lines = [f"    {verb.usage.ljust(width)}  {verb.doc}" for verb in VERBS.values()]
    return "Start, watch and end the ranks. %hvd alone is %hvd status.\n\n::\n\n" + "\n".join(lines) + "\n"
