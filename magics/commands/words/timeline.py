"""%hvd timeline: have rank 0 record a Chrome trace of what the core does, and show one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options, nearest

TIMELINE = "hvd-timeline.json"
"""The file of a timeline that is given no other, in the notebook's folder."""


def timeline(context: Context, options: Options) -> None:
    """Start or stop the recording, or show one."""
    word, path, *_ = (*(options.words[1:] or ("show",)), "")
    if word not in _ACTIONS:
        usage = "write %hvd timeline start [FILE], stop, or show [FILE]"
        raise UsageError(f"%hvd timeline: {word!r} is not understood{nearest(word, [*_ACTIONS])}; {usage}")
    _ACTIONS[word](context, options, path)


def _start(context: Context, options: Options, name: str) -> None:
    path = Path(name or TIMELINE).absolute()
    if not options.force and path.is_file() and not path.read_bytes()[:40].startswith(b'[\n{"name":"process_name"'):
        raise UsageError(f"%hvd timeline: {path} exists and is not a timeline: name another file, or add --force")
    _told(context, "start", path=str(path), cycles=options.mark_cycles)
    context.writer().say(f"rank 0 records into {path}: run cells, then %hvd timeline stop\n")


def _stop(context: Context, _options: Options, name: str) -> None:
    if name:
        raise UsageError(
            f"%hvd timeline stop takes no file name, and {name} was given: it ends the timeline that was started"
        )
    if not _told(context, "tell")["goes_on"]:
        raise UsageError("%hvd timeline: none is being recorded; %hvd timeline start begins one")
    _show(context, _told(context, "stop"))


def _show_recorded(context: Context, _options: Options, name: str) -> None:
    if name:
        _show(context, {"path": str(Path(name).absolute())})
        return
    known = _told(context, "tell") if context.manager.session is not None else {"path": ""}
    if not known["path"]:
        raise UsageError("%hvd timeline: nothing has been recorded; write %hvd timeline start, or show FILE")
    _show(context, known)


def _told(context: Context, do: str, **more: object) -> Mapping[str, Any]:
    """Have rank 0 do something about its timeline, also while a cell runs."""
    answers = context.manager.current().ask("timeline", [0], {"do": do, **more}, urgent=True)
    if 0 not in answers:
        raise ClusterError("%hvd timeline: rank 0, which writes timelines, is dead; %hvd respawn 0 replaces it")
    content = answers[0][0]
    if content["refused"]:
        raise UsageError(f"%hvd timeline: {content['refused']}")
    return content


def _show(context: Context, known: Mapping[str, Any]) -> None:
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
    context.writer().show({"text/plain": text, "text/html": lanes.page(recording, str(path), text)})


_ACTIONS = {"start": _start, "stop": _stop, "show": _show_recorded}
