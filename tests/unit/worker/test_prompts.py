"""Prompts of ranks: the wait for a line, the order of prompts, casts, refusals; pdb in a cell."""

from __future__ import annotations

import bdb
import builtins
import gc
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hvdtest.fakes import FakeBoard, FakeWriter
from hvdtest.magic_lines import parse
from IPython.core.error import StdinNotImplementedError

from hvd_kernel.cluster.requests.gather import Gather
from hvd_kernel.errors import UsageError
from hvd_kernel.magics import cell_prompts as prompts_module
from hvd_kernel.magics.cell_prompts import CellPrompts
from hvd_kernel.magics.display.cell_output import CellOutput
from hvd_kernel.protocol.messages import PROMPT_TYPE, Prompt, RankDone, TextDelta, from_content, to_content
from hvd_kernel.worker.shell.prompt import ANY, RankPdb
from hvd_kernel.worker.shell.prompt import RankPrompts as OfRank

PATIENCE_S = 60.0


class FakeFrontEnd:
    """A front end that answers from a list, and records prompts and the text between them."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.seen: list[str] = []

    def write(self, text: str, stream: str = "stdout") -> None:
        if text:
            self.seen.append(f"{stream}: {text}")

    def show_prompt(self, text: str, *, password: bool) -> None:
        self.seen.append(f"password {text}" if password else text)

    def poll(self) -> str | None:
        return self.lines.pop(0) if self.lines else None


class FakeSession:
    """A session that records typed lines by rank; if ``slow``, the test reports whether a line was read."""

    n = 4

    def __init__(self) -> None:
        self.typed: list[tuple[int, int, str]] = []
        self.dead: tuple[int, ...] = ()
        self.slow = False
        self.sent: list[Gather] = []

    def post(self, handler: str, ranks: list[int], content: dict[str, Any], *, urgent: bool) -> Gather:
        assert (handler, urgent, len(ranks)) == ("typed", True, 1)
        if ranks[0] in self.dead:
            return Gather([], handler)
        what = next(content[key] for key in ("text", "refused", "eof") if key in content)
        self.typed.append((ranks[0], content["number"], what))
        self.sent.append(Gather(ranks, handler))
        if not self.slow:
            self.sent[-1].on_reply(ranks[0], {"taken": True}, [])
        return self.sent[-1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that only the test moves."""
    now = [100.0]
    monkeypatch.setattr(prompts_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def made(front_end: FakeFrontEnd | None) -> tuple[CellPrompts, FakeSession, CellOutput]:
    session, output = FakeSession(), CellOutput(FakeWriter(), FakeBoard(), range(4))
    return CellPrompts(session, output, range(4), front_end), session, output


def ask(prompts: CellPrompts, *ranks: int, number: int = 1, text: str = "? ") -> None:
    for rank in ranks:
        prompts.handle(Prompt(rank, number, text))


# A user in front.


def test_lowest_rank_is_prompted_first(clock: Callable[[float], None]) -> None:
    front_end = FakeFrontEnd()
    prompts, session, _ = made(front_end)
    ask(prompts, 2)
    prompts.tick()
    assert front_end.seen == [], "ranks 0 and 1 may ask in a moment"
    ask(prompts, 0)
    front_end.lines = ["zero"]
    prompts.tick()
    clock(prompts_module.SETTLE_S)
    front_end.lines = ["two"]
    prompts.tick()
    assert front_end.seen == ["[0] ? ", "[2] ? "]
    assert session.typed == [(0, 1, "zero"), (2, 1, "two")]


def test_prompts_stay_with_the_rank_being_stepped(clock: Callable[[float], None]) -> None:
    front_end = FakeFrontEnd("n")
    prompts, _, _ = made(front_end)
    ask(prompts, 0, 2)
    prompts.tick()
    prompts.tick()
    ask(prompts, 0, number=2)
    front_end.lines = ["c"]
    prompts.tick()
    clock(prompts_module.SETTLE_S)
    prompts.tick()
    assert front_end.seen == ["[0] ? ", "[0] ? ", "[2] ? "]


def test_lone_high_rank_waits_once(clock: Callable[[float], None]) -> None:
    front_end = FakeFrontEnd("n", "n")
    prompts, session, _ = made(front_end)
    ask(prompts, 3)
    clock(prompts_module.SETTLE_S)
    prompts.tick()
    ask(prompts, 3, number=2)
    prompts.tick()
    assert session.typed == [(3, 1, "n"), (3, 2, "n")]


def test_text_stands_above_the_prompt_and_is_not_stored_again() -> None:
    front_end = FakeFrontEnd("x")
    prompts, _, output = made(front_end)
    output.handle(TextDelta(0, "stdout", "before\nopen"))
    ask(prompts, 0)
    prompts.tick()
    output.handle(TextDelta(0, "stdout", "after\n"))
    assert front_end.seen == ["stdout: [0] before\n[0] open\n", "[0] ? "]
    output.finish()
    assert output._writer.written == [("stdout", "[0] after\n")]
    assert output.printed("stdout")[0] == "before\nopenafter"


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        ("plain", [(0, 1, "plain")]),
        ("@all n", [(0, 1, "n"), (1, 1, "n"), (3, 1, "n")]),
        ("@0,3 p x + 1", [(0, 1, "p x + 1"), (3, 1, "p x + 1")]),
        ("@1: c", [(1, 1, "c"), (3, 1, "c")]),
        ("@@all n", [(0, 1, "@all n")]),
        ("@ada hello", [(0, 1, "@ada hello")]),
        ("@all", [(0, 1, "@all")]),
        ("\x04", [(0, 1, True)]),
    ],
)
def test_meaning_of_an_input_line(clock: Callable[[float], None], line: str, typed: list[tuple[int, int, str]]) -> None:
    front_end = FakeFrontEnd(line)
    prompts, session, _ = made(front_end)
    ask(prompts, 0, 1, 3)
    prompts.tick()
    clock(prompts_module.CAST_S)
    prompts.tick()
    assert session.typed == typed


def test_cast_waits_for_a_named_rank_and_reports_it(clock: Callable[[float], None]) -> None:
    front_end = FakeFrontEnd("@0,2 n")
    prompts, session, _ = made(front_end)
    ask(prompts, 0)
    prompts.tick()
    prompts.tick()
    assert session.typed == []
    ask(prompts, 2)
    prompts.tick()
    assert session.typed == [(0, 1, "n"), (2, 1, "n")]
    front_end.lines = ["@0,1 c"]
    ask(prompts, 0, number=2)
    prompts.tick()
    clock(prompts_module.CAST_S)
    prompts.tick()
    assert session.typed[2:] == [(0, 2, "c")]
    assert front_end.seen[-1] == "stderr: rank 1 is not at a prompt and did not get 'c'\n"


def test_cast_to_a_missing_rank_prompts_again(clock: Callable[[float], None]) -> None:
    front_end = FakeFrontEnd("@7 n")
    prompts, session, _ = made(front_end)
    ask(prompts, 0)
    prompts.tick()
    front_end.lines = ["ok"]
    prompts.tick()
    assert front_end.seen[1].startswith("stderr: --ranks 7: there is no rank 7")
    assert session.typed == [(0, 1, "ok")]


def test_password_prompt_is_hidden_and_never_cast() -> None:
    front_end = FakeFrontEnd("@all n")
    prompts, session, _ = made(front_end)
    prompts.handle(Prompt(0, 1, "key: ", password=True))
    ask(prompts, 1)
    assert list(prompts.waiting()) == [1]
    prompts.tick()
    assert front_end.seen == ["password [0] key: "]
    assert session.typed == [(0, 1, "@all n")]


def test_ended_or_interrupted_rank_is_not_prompted(clock: Callable[[float], None]) -> None:
    front_end = FakeFrontEnd()
    prompts, _, _ = made(front_end)
    ask(prompts, 0, 1, 2)
    prompts.tick()
    prompts.handle(RankDone(0))
    prompts.tick()
    prompts.withdraw()
    prompts.handle(RankDone(1))
    prompts.tick()
    assert front_end.seen == ["[0] ? ", "[1] ? "], "rank 2 is being interrupted too"


def test_the_time_at_prompts_is_counted_once(clock: Callable[[float], None]) -> None:
    prompts, _, _ = made(FakeFrontEnd())
    clock(5)
    ask(prompts, 0)
    clock(2)
    ask(prompts, 1)
    clock(1)
    assert prompts.waited == 3
    prompts.withdraw()
    clock(10)
    assert prompts.waited == 3
    ask(prompts, 0, number=2)
    clock(1)
    assert prompts.waited == 4


def test_rank_slow_to_read_its_line_is_not_prompted_twice() -> None:
    front_end = FakeFrontEnd("a")
    prompts, session, _ = made(front_end)
    session.slow = True
    ask(prompts, 0)
    for _ in range(3):
        prompts.tick()
    assert session.typed == [(0, 1, "a")]
    assert front_end.seen == ["[0] ? "]
    session.sent[0].on_reply(0, {"taken": True}, [])
    prompts.tick()
    assert front_end.seen == ["[0] ? "]


def test_line_for_an_expired_prompt_is_reported(clock: Callable[[float], None]) -> None:
    front_end = FakeFrontEnd("n")
    prompts, session, _ = made(front_end)
    session.slow = True
    ask(prompts, 0)
    prompts.handle(Prompt(1, 1, "key: ", password=True))
    prompts.tick()
    front_end.lines = ["s3cret"]
    clock(prompts_module.SETTLE_S)
    prompts.tick()
    for rank, sent in zip([0, 1], session.sent, strict=True):
        sent.on_reply(rank, {"taken": False}, [])
    for _ in range(2):
        prompts.tick()
    assert front_end.seen == [
        "[0] ? ",
        "password [1] key: ",
        "stderr: rank 0 no longer asks and did not get 'n'\n",
        "stderr: rank 1 no longer asks and did not get the answer\n",
    ]


def test_line_for_a_dead_rank_is_not_requested_again() -> None:
    front_end = FakeFrontEnd("c")
    prompts, session, _ = made(front_end)
    session.dead = (0,)
    ask(prompts, 0)
    prompts.tick()
    prompts.tick()
    assert (prompts.waiting(), session.typed, front_end.seen) == ({}, [], ["[0] ? "])


# Nobody in front, or a job.


def test_prompt_without_a_user_is_refused_at_once() -> None:
    prompts, session, _ = made(None)
    ask(prompts, 3)
    assert session.typed == [(3, 1, prompts_module.NO_USER)]


def test_prompts_of_a_job_wait_for_a_cast_and_report_it() -> None:
    front_end = FakeFrontEnd()
    prompts, session, output = made(front_end)
    prompts.park(has_user=True)
    ask(prompts, 0, 2, text="(Pdb) ")
    assert prompts.cast([0, 1, 2], "n") == [1]
    assert session.typed == [(0, 1, "n"), (2, 1, "n")]
    found: list[str] = []
    looker = threading.Thread(target=lambda: found.append(prompts.collect([0, 2], PATIENCE_S)))
    looker.start()
    output.handle(TextDelta(0, "stdout", "at line 4\n"))
    ask(prompts, 0, number=2, text="(Pdb) ")
    prompts.handle(RankDone(2))
    while looker.is_alive():
        prompts.tick()
        looker.join(0.01)
    assert found == ["[0] at line 4\n[0] (Pdb)\n[2] is not at a prompt: it has ended the cell\n"]
    assert front_end.seen == []


@pytest.mark.parametrize(
    ("line", "ranks", "text"),
    [
        ("", "all", ""),
        ("n", "all", "n"),
        ("--ranks 0,2 p 'a  b'", "0,2", "p 'a  b'"),
        ('--rank=1 x = "--ranks"', "1", 'x = "--ranks"'),
        ("-t 0", "0", ""),
        ("p --ranks", "all", "p --ranks"),
    ],
)  # fmt: skip
def test_the_line_of_hvdpdb_is_sent_as_it_is(line: str, ranks: str, text: str) -> None:
    options = parse("%hvdpdb", line)
    assert (options.ranks, options.text) == (ranks, text)


# In the rank.


def asked(prompts: OfRank, **how: Any) -> tuple[threading.Thread, list[Any]]:
    """Prompt in a thread; the list gets the result or the error."""
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(prompts.request("? ", **{"password": False, "parent": {}, **how}))
        except (EOFError, StdinNotImplementedError) as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, answers


def test_waits_of_the_main_thread_for_the_user_are_announced() -> None:
    told: list[object] = []

    def publish(_kind: str, content: dict[str, Any], _parent: dict[str, Any]) -> None:
        told.append("asked")
        assert prompts.deliver({"number": content["number"], "text": "yes"})

    prompts = OfRank(2, publish, told.append)
    with prompts.during_cell():
        assert prompts.request("? ", password=False, parent={}) == "yes"
    assert told == [True, "asked", False]


def test_rank_accepts_the_answer_to_its_own_prompt() -> None:
    said = threading.Semaphore(0)
    published: list[tuple[str, Prompt, dict[str, Any]]] = []

    def publish(kind: str, content: dict[str, Any], parent: dict[str, Any]) -> None:
        published.append((kind, from_content(Prompt, content), parent))
        said.release()

    prompts = OfRank(2, publish)
    with prompts.during_cell():
        thread, answers = asked(prompts, parent={"cell": 1})
        assert said.acquire(timeout=PATIENCE_S)
        assert published == [(PROMPT_TYPE, Prompt(2, 1, "? "), {"cell": 1})]
        assert not prompts.deliver({"number": 9, "text": "no"})
        assert prompts.deliver({"number": 1, "text": "yes"})
        thread.join(PATIENCE_S)
        assert answers == ["yes"]
        assert not prompts.deliver({"number": 1, "text": "late"})
        thread, answers = asked(prompts, password=True)
        assert said.acquire(timeout=PATIENCE_S)
        assert not prompts.deliver({"number": ANY, "text": "a cast"})
        assert prompts.deliver({"number": 2, "eof": True})
        thread.join(PATIENCE_S)
        assert isinstance(answers[0], EOFError)
        thread, answers = asked(prompts)
        assert said.acquire(timeout=PATIENCE_S)
    thread.join(PATIENCE_S)
    assert isinstance(answers[0], StdinNotImplementedError), "the cell's end frees a thread that still waits"
    with pytest.raises(StdinNotImplementedError, match="no cell of this rank is running"):
        prompts.request("? ", password=False, parent={})


def test_ending_cell_refuses_a_prompt_of_a_thread() -> None:
    published: list[object] = []
    prompts = OfRank(2, lambda *what: published.append(what))
    cell = prompts.during_cell()
    cell.__enter__()

    def number_of_a_late_prompt() -> int:
        cell.__exit__(None, None, None)
        return 1

    prompts._numbers = iter(number_of_a_late_prompt, 0)
    thread, answers = asked(prompts)
    while thread.is_alive() and not published:
        thread.join(0.01)
    prompts.deliver({"number": 1, "text": "frees it"})
    thread.join(PATIENCE_S)
    assert published == [], "nobody would answer"
    assert isinstance(answers[0], StdinNotImplementedError)
    assert prompts.unanswered == []


def test_a_prompt_crosses_the_wire() -> None:
    prompt = Prompt(1, 7, "(Pdb) ", password=True)
    assert from_content(Prompt, to_content(prompt)) == prompt


# pdb, on this Python.


class FakeShell:
    compile = types.SimpleNamespace(format_code_name=lambda name: ("Cell", "In[1]") if name == "cell" else None)


def debugged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lines: Iterable[str], *statements: str
) -> tuple[dict[str, Any], str]:
    """Run statements as IPython does, each a module of its own, with ``stop()`` for a breakpoint."""
    script = iter(lines)
    monkeypatch.setattr(builtins, "input", lambda _prompt="": next(script))
    debugger = RankPdb(FakeShell())
    names: dict[str, Any] = {"__name__": "__main__"}
    names["stop"] = lambda: debugger.stop_in(sys_frame())
    gc.disable()  # its calls between two statements would be stepped into: here they are not hidden
    try:
        for statement in statements:
            exec(compile(statement, "cell", "exec"), names)
    finally:
        gc.enable()
        sys_untrace()
    return names, capsys.readouterr().out


def sys_frame() -> types.FrameType:
    import sys

    return sys._getframe(2)


def sys_untrace() -> None:
    import sys

    sys.settrace(None)


def test_steps_move_from_statement_to_statement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["p 'first'", "n", "p x", "n", "p y", "c"]
    names, out = debugged(monkeypatch, capsys, lines, "x = 1", "stop()", "\ny = x + 1", "\n\nz = y * 10")
    assert [line for line in out.splitlines() if line.startswith(("> ", "'", "1", "2"))] == [
        "> Cell In[1](1)<module>()",
        "'first'",
        "> Cell In[1](2)<module>()",
        "1",
        "> Cell In[1](3)<module>()",
        "2",
    ]
    assert names["z"] == 20


def test_quit_raises_where_the_user_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for lines in (["q"], ["n", "q"]):
        with pytest.raises(bdb.BdbQuit, match="left the debugger with q"):
            debugged(monkeypatch, capsys, lines, "stop()", "y = 1")


def test_an_interrupt_at_the_prompt_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> Iterable[str]:
        yield "n"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        debugged(monkeypatch, capsys, interrupted(), "stop()", "y = 1")


def test_missing_traceback_is_reported() -> None:
    from hvd_kernel.worker.shell.prompt import Debugging

    with pytest.raises(UsageError, match="there is no failed cell to look at"):
        Debugging(FakeShell()).post_mortem()


def test_incomplete_message_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="Prompt: Object missing required field `text`"):
        from_content(Prompt, {"rank": 1, "number": 1})


def test_subclasses_of_builtin_types_become_content() -> None:
    class Text(str):
        __slots__ = ()

    class Flag(int):
        pass

    content = to_content(Prompt(Flag(2), 1, Text("a line: ")))
    assert {key: (type(value), value) for key, value in content.items()} == {
        "rank": (int, 2),
        "number": (int, 1),
        "text": (str, "a line: "),
        "password": (bool, False),
    }
