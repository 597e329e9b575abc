"""Output of ranks, in a real kernel on four ranks: bounded, complete, the same every time; and their logs."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

import psutil
import pytest
from hvdtest.cluster import until
from hvdtest.gate import Gate
from hvdtest.kernel import Kernel, Outcome

from hvd_kernel.magics.cell_view import NOT_FINITE
from hvd_kernel.worker.output import Index, LogFile

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400), pytest.mark.cluster(4)]

FLOOD_BYTES = 20_000_000
LINE = 100


def cell(kernel: Kernel, code: str, **how: object) -> Outcome:
    return kernel.run(f"%%hvdrun\n{code}", **how)


def logs(kernel: Kernel, options: str = "", stream: str = "stdout") -> str:
    return kernel.run(f"%hvdlogs {options}").text(stream)


def log_files(kernel: Kernel) -> dict[tuple[int, str], Path]:
    """(rank, stream) -> the file."""
    found = re.findall(r"^\[(\d)\] (\S+)$", logs(kernel, "--path"), re.MULTILINE)
    return {(int(rank), path.rpartition(".")[2]): Path(path) for rank, path in found}


def number_of(kernel: Kernel) -> int:
    """The number that the notebook has given the cell before."""
    latest: int = kernel.run("1").reply["execution_count"]
    return latest - 1


def resident(kernel: Kernel) -> dict[int, int]:
    """Bytes of the kernel and of each process below it."""
    top = psutil.Process(kernel.pid)
    sizes = {}
    for process in [top, *top.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            sizes[process.pid] = process.memory_info().rss
    return sizes


def test_h1_r22_flood_is_cut_in_the_cell_and_whole_in_logs(kernel: Kernel) -> None:
    count = FLOOD_BYTES // LINE
    cell(kernel, "print('warm')")
    files = log_files(kernel)
    before, sizes = resident(kernel), {key: file.stat().st_size for key, file in files.items()}
    started = kernel.start(f"%%hvdrun\nfor i in range({count}): print(f'{{rank}}:{{i:0{LINE - 3}d}}')")
    peak = before
    while not kernel.client.shell_channel.msg_ready() and time.monotonic() - started[1] < 200:
        peak |= {pid: max(peak[pid], now) for pid, now in resident(kernel).items() if pid in peak}
        time.sleep(0.1)
    outcome = kernel.finish(started, timeout=200)
    said = outcome.text().splitlines()
    number = number_of(kernel)
    for rank in range(4):
        own = [line for line in said if line.startswith(f"[{rank}] {rank}:")]
        numbers = [int(line.rpartition(":")[2]) for line in own]
        half = len(own) // 2
        assert numbers == [*range(half), *range(count - half, count)], "head and tail without a gap of their own"
        mark = f"… {count - len(own):,} lines more: %hvdlogs --cell {number}"
        assert [line for line in said if line.endswith(mark) and line.startswith(("[0-3]", f"[{rank}]"))], said[1000]
        written = files[rank, "stdout"].read_bytes()[sizes[rank, "stdout"] :]
        assert written == b"".join(b"%d:%0*d\n" % (rank, LINE - 3, i) for i in range(count)), "no byte is lost"
    assert outcome.size < 2_000_000
    grown = {pid: now - before[pid] for pid, now in peak.items()}
    assert sum(grown.values()) <= 64e6, {psutil.Process(pid).cmdline()[3]: size for pid, size in grown.items()}
    assert logs(kernel, "--ranks 2 --tail 1") == f"[2] 2:{count - 1:0{LINE - 3}d}\n"


def test_h1_an_interrupt_ends_a_flood(kernel: Kernel) -> None:
    started = kernel.start("%%hvdrun\nprint('in')\nwhile True: print('x' * 80)", prompts=True)
    kernel.wait_for("comm_open", of=started)
    kernel.manager.interrupt_kernel()
    outcome = kernel.finish_rest(started, allow_error=True)
    assert outcome.reply["ename"] == "KeyboardInterrupt"
    assert cell(kernel, "rank").shown == ["[0] 0\n[1] 1\n[2] 2\n[3] 3"]


def test_h2_a_flood_of_metrics_ends_exactly(kernel: Kernel) -> None:
    code = "for i in range(50_000): hvd.log(loss=i)\ni"
    outcome = cell(kernel, code)
    assert outcome.shown == ["hvd dashboard: 4 ranks", "[0-3] 49999"]
    assert "49999" in outcome.contents("display_data")[0]["data"]["image/svg+xml"].replace(",", "")
    assert len(outcome.messages) <= 8, "one board, one result: nothing per update"


def test_h3_a_flood_of_names_is_capped_with_a_notice(kernel: Kernel) -> None:
    outcome = cell(kernel, "for i in range(20_000): hvd.log(**{f'n{i}': i})")
    assert outcome.shown == ["hvd dashboard: 4 ranks"]
    notice = r"\[0-3\] .*ipykernel_0/\d+.py:1: UserWarning: log: 'n256' is not shown, nor are others"
    assert len(re.findall(notice, outcome.text("stderr"))) == 1, "the same on all ranks, in all runs"
    assert outcome.size < 300_000


def test_h5_bytes_that_are_not_text(kernel: Kernel) -> None:
    code = """import os, sys
os.write(1, b'bad \\xff\\xc3 bytes\\n')
print('nul \\0 half \\ud83d end')
os.write(1, '\u20ac'.encode()[:1]); os.write(1, '\u20ac\\n'.encode()[1:])
for i in range(20_000): print(f'\\r{i}', end='')
print()
print('y' * 10_000_000)
print('\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07\\x1b[2Kplain')
"""
    assert cell(kernel, code).text().splitlines() == [
        "[0-3] bad \ufffd\ufffd bytes",
        "[0-3] nul \ufffd half \ufffd end",
        "[0-3] \u20ac",
        "[0-3] 19999",
        "[0-3] " + "y" * 4000 + " … 9,996,000 characters left out",
        "[0-3] \x1b[31mred\x1b[0m plain",
    ]


def test_h6_native_code_and_children_reach_the_cell(kernel: Kernel) -> None:
    code = """import ctypes, os, subprocess, sys
print('first')
os.system('echo shell; echo problem >&2')
subprocess.run(['echo', 'subprocess'])
subprocess.run(['echo', 'given'], stdout=sys.stdout)
libc = ctypes.CDLL(None); libc.puts(b'C'); libc.fflush(None)
child = os.fork()
if child == 0:
    print('forked'); os._exit(0)
os.waitpid(child, 0)
libc.puts(b'held back')
print('last')
"""
    outcome = cell(kernel, code)
    words = ["first", "shell", "subprocess", "given", "C", "forked", "last"]
    text = outcome.text()
    assert "[0-3] held back\n" in text, "what the C library holds back is written at the cell's end at the latest"
    assert text.replace("[0-3] held back\n", "") == "".join(f"[0-3] {word}\n" for word in words)
    assert outcome.text("stderr") == "[0-3] problem\n"


def test_h6_closed_descriptors_do_not_end_the_cell(kernel: Kernel) -> None:
    code = """import os
kept = os.dup(1), os.dup(2)
os.close(1); os.close(2)
print('still here')
os.system('echo nowhere')
os.dup2(kept[0], 1); os.dup2(kept[1], 2)
os.system('echo again')
"""
    assert cell(kernel, code).text() == "[0-3] still here\n[0-3] again\n"


def test_h6_c_code_holding_the_gil_does_not_wait_for_readers(kernel: Kernel) -> None:
    code = (
        "import ctypes\nlibc = ctypes.PyDLL(None)\nlibc.write(1, b'z' * 1_000_000, 1_000_000)\nprint()\nprint('after')"
    )
    cut = "[0-3] " + "z" * 4000 + " … 996,000 characters left out\n"
    assert cell(kernel, code).text() == cut + "[0-3] after\n"


def test_e5_full_disk_does_not_end_the_cell(kernel: Kernel) -> None:
    code = """import resource
if rank == 1:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
print('on a full disk')
if rank == 1:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
print('there is room again')
rank
"""
    outcome = cell(kernel, code)
    assert outcome.text() == "[0-3] on a full disk\n[0-3] there is room again\n"
    assert outcome.shown == ["[0] 0\n[1] 1\n[2] 2\n[3] 3"]
    assert outcome.text("stderr") == "[1] 15 bytes of this cell are not in this rank's log: File too large\n"
    assert "[15 bytes are missing here: File too large]" in logs(kernel, "--ranks 1 --tail 3")
    assert "on a full disk" in logs(kernel, "--ranks 2 --tail 3")


def test_e5_text_rejected_by_a_full_disk_is_not_lost(tmp_path: Path) -> None:
    """The I/O thread may flush the kept text at any moment in which the other thread is in a system call."""
    taken: list[tuple[int, bytes]] = []

    class Taken(LogFile):
        @property
        def size(self) -> int:
            taken.extend(self.pop_unlogged())
            return super().size

    no_folder = tmp_path / "file"
    no_folder.touch()
    log = Taken(no_folder, 0, "stdout", Index(no_folder, 0), 1 << 20)
    for text in (b"on a full", b" disk\n"):
        log.append(text)
    assert [*taken, *log.pop_unlogged()] == [(0, b"on a full"), (0, b" disk\n")]


def test_progress_bars_are_one_line_in_the_end(kernel: Kernel) -> None:
    code = """from tqdm import tqdm
for _ in tqdm(range(500), bar_format='{n_fmt}/{total_fmt}', mininterval=0): pass
for _ in tqdm(range(3), bar_format='outer {n_fmt}', mininterval=0):
    for _ in tqdm(range(4), bar_format='inner {n_fmt}', mininterval=0, leave=False): pass
"""
    lines = [line.rstrip() for line in cell(kernel, code).text("stderr").splitlines()]
    assert lines == ["[0-3] 500/500", "[0-3] outer 3"]


def test_widget_progress_bar_is_shown_in_its_last_state(kernel: Kernel) -> None:
    code = """import warnings; warnings.simplefilter('ignore')
from tqdm.notebook import tqdm
for _ in tqdm(range(50), bar_format='{n_fmt} of {total_fmt}'): pass
"""
    outcome = cell(kernel, code)
    assert len(outcome.shown) == 1, outcome.shown
    assert "50 of 50" in outcome.shown[0]


def test_updates_and_clear_output_leave_the_last_state(kernel: Kernel) -> None:
    code = """from IPython.display import clear_output, display
for i in range(300):
    clear_output(wait=True)
    print('step', i)
handle = display({'text/plain': 'begin'}, raw=True, display_id=True)
for i in range(1000):
    handle.update({'text/plain': f'state {i}'}, raw=True)
"""
    outcome = cell(kernel, code)
    assert outcome.text() == "[0-3] step 299\n"
    assert outcome.shown == ["[0-3] state 999"]
    assert len(outcome.messages) < 12


def test_too_many_displays_are_counted(kernel: Kernel) -> None:
    code = "from IPython.display import display\nfor i in range(1234): display({'text/plain': str(i)}, raw=True)\n'r'"
    shown = cell(kernel, code).shown
    assert shown[:200] == [f"[0-3] {i}" for i in range(200)]
    assert shown[200:] == ["[0-3] … 1,034 displays more, which were too many to keep", "[0-3] 'r'"]


def test_equal_figures_of_ranks_are_stored_once(kernel: Kernel) -> None:
    code = "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2, 3]); plt.show()\nprint('drawn')"
    outcome = cell(kernel, code, timeout=120)
    pictures = [content for content in outcome.contents("display_data") if "image/png" in content["data"]]
    assert len(pictures) == 1
    assert outcome.text() == "[0-3] drawn\n"


def test_rich_results_that_differ_are_shown_for_each_rank(kernel: Kernel) -> None:
    """They were text only: ``<IPython.core.display.Markdown object>``."""
    outcome = cell(kernel, "from IPython.display import Markdown\nMarkdown(f'*{rank % 2}*')")
    shown = [content["data"] for content in outcome.contents("display_data")]
    assert [data["text/plain"] for data in shown[::2]] == ["[0,2]", "[1,3]"]
    assert [data["text/markdown"] for data in shown[1::2]] == ["*0*", "*1*"]
    code = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots(); ax.plot([rank, 1]); plt.close()\nfig"
    drawn = cell(kernel, f"%matplotlib inline\n{code}", timeout=120).contents("display_data")
    assert len([content for content in drawn if "image/png" in content["data"]]) == 4


def test_logs_of_a_cell_of_a_rank_of_a_stream(kernel: Kernel) -> None:
    cell(kernel, "import sys\nprint('one', rank); print('err', rank, file=sys.stderr)")
    number = number_of(kernel)
    cell(kernel, "for i in range(1000): print('two', rank, i)")
    everyone = kernel.run(f"%hvdlogs --cell {number}")
    assert everyone.text() == "".join(f"[{r}] one {r}\n" for r in range(4))
    assert everyone.text("stderr") == "".join(f"[{r}] err {r}\n" for r in range(4))
    assert logs(kernel, f"--cell {number} --stream stderr --ranks 2", "stderr") == "[2] err 2\n"
    assert logs(kernel, f"--cell {number} --stream stderr --ranks 2") == ""
    assert logs(kernel, "--ranks 0,3 --tail 1 --stream stdout") == "[0] two 0 999\n[3] two 3 999\n"
    refused = kernel.run("%hvdlogs --cell 9999", allow_error=True)
    assert refused.error == "ClusterError: rank 0: it has not run cell 9999, so there is no log of it"
    for file in log_files(kernel).values():
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700


def test_logs_of_another_host_are_read_through_the_rank(kernel: Kernel) -> None:
    cell(kernel, "print('far', rank)")
    code = """from hvd_kernel.magics import manager_of
asked = {"stream": "stdout", "cell": None, "lines": 1}
{r: c["text"] for r, (c, _) in manager_of(get_ipython()).current().ask("log", None, asked, urgent=True).items()}
"""
    assert kernel.run(code).shown == [str({r: f"far {r}\n" for r in range(4)})]


def test_logs_while_a_cell_runs(kernel: Kernel, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        kernel.run(f"%%hvdrun --bg held\nprint('early', rank, flush=True)\n{gate.hold}")
        early = "".join(f"[{r}] early {r}\n" for r in range(4))
        until(lambda: logs(kernel, "--tail 1") == early, "the text of a running cell is in the logs")
    kernel.run("%hvdjobs --wait held")


def test_a_closed_tab_loses_nothing(kernel: Kernel, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        code = (
            f"for i in range(20): print(rank, 'line', i)\n{gate.hold}\nfor i in range(20, 30): print(rank, 'line', i)"
        )
        kernel.start(f"%%hvdrun\n{code}", prompts=True)
        dashboard = kernel.wait_for("display_data")["data"]["application/vnd.jupyter.widget-view+json"]["model_id"]
        kernel.client.stop_channels()
    kernel._connect()
    number = number_of(kernel)
    assert logs(kernel, f"--cell {number}") == "".join(f"[{r}] {r} line {i}\n" for r in range(4) for i in range(30))
    ask = {"comm_id": dashboard, "data": {"method": "custom", "content": "snapshot"}}
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", ask))
    state = kernel.wait_for("comm_msg")["data"]["state"]["snapshot"]
    assert state["finished"]
    assert sorted(text for rank, stream, text in state["log"] if text.endswith("line 29")) == [
        f"{rank} line 29" for rank in range(4)
    ]


def test_final_output_of_a_killed_rank_is_shown(kernel: Kernel) -> None:
    code = "import os, signal\nprint('last words', rank)\nif rank == 2: os.kill(os.getpid(), signal.SIGKILL)"
    outcome = cell(kernel, code, allow_error=True)
    assert outcome.reply["ename"] == "RankDied"
    assert logs(kernel, "--ranks 2 --tail 1") == "[2] last words 2\n"
    kernel.run("%hvd restart", timeout=120)
    assert cell(kernel, "print('new')").text() == "[0-3] new\n"


LOGGED = """import hvd_kernel.numpy as hvd
for step in range(400):
    hvd.log(loss={100: 1000.0, 210: float("nan") if rank == 1 else 1.0}.get(step, 1.0), late=1.0, step=step)
hvd.log(late=float("-inf"), step=400)
hvd.barrier()
step"""


def test_a_logged_value_that_is_not_finite_is_reported(kernel: Kernel) -> None:
    """One NaN among other values was lost, and a last one only made a message that JSON could not represent."""
    outcome = cell(kernel, LOGGED)
    texts = [
        NOT_FINITE.format(name="loss", value="NaN", rank=1, step=210),
        *(NOT_FINITE.format(name="late", value="-infinity", rank=rank, step=400) for rank in range(4)),
    ]
    errors = outcome.text("stderr").splitlines()
    assert outcome.shown[-1] == "[0-3] 399"
    assert sorted(errors) == sorted(set(errors) & set(texts))
    assert (len(errors), errors.count(texts[0])) == (2, 1)
    assert all(text in logs(kernel, "--ranks 0", "stderr") for text in errors)
