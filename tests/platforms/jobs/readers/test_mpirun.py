"""Lines of mpirun, mpiexec and horovodrun as their pages print them: what is read, ignored, refused."""

from __future__ import annotations

import pytest

from hvd_kernel.jobs import JobError, JobSpec, formats
from hvd_kernel.jobs.tables import knobs
from hvd_kernel.jobs.tables.mpi import HOROVOD, HOROVOD_SPELLED, MPI
from hvd_kernel.launch.cli import elastic, flags

HOSTFILE = "# two hosts\na slots=2\nb:4\n"


def read(line: str) -> JobSpec:
    return formats.read(line, "the command line", "", {"hosts.txt": HOSTFILE}.get)


def hosts(spec: JobSpec) -> list[tuple[str, int]]:
    return [(replica.host, replica.slots) for replica in spec.replicas]


def refused(line: str) -> str:
    with pytest.raises(JobError) as error:
        read(line)
    return str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "mpirun -np 4 -H a:2,b:2 python train.py",
        "$ mpirun --np 4 --host a:2,b:2 python train.py",
        "mpirun -np 4 --host a:2,b:2, python train.py",
        "mpirun -n 4 -H a:2 -H b:2 python train.py",
        "mpirun -np 4 \\\n    -H a:2,b:2 \\\n    python train.py\n",
        "mpirun -np 4 \\\r\n    -H a:2,b:2 \\  \r\n    python train.py",
        "mpirun -np 4\n    -H a:2,b:2\n    python train.py",  # no backslashes, as some pages have them
        "mpirun -np 4 -H a,a,b,b python train.py",
        "mpirun -np 4 -H a,b -npernode 2 python train.py",
        "mpirun -np 4 -H a,b --map-by ppr:2:node:pe=4 python train.py",
        "mpirun -np 4 -H a,b --oversubscribe python train.py",
        "mpirun -np 4 -H a,b --map-by slot:OVERSUBSCRIBE python train.py",
        "mpirun --np=4 --host=a:2,b:2 -- python train.py",
        "/usr/lib/openmpi/bin/orterun -np 4 -H a:2,b:2 python train.py",
        "mpiexec.hydra -n 4 -ppn 2 -hosts a,b python train.py",
        "mpiexec.hydra -n 4 -hosts a,b python train.py",  # Hydra begins with the first host again
        "mpiexec -n 4 -host a:2,b:2 python train.py",
    ],
)
def test_spellings_of_four_ranks_on_two_hosts(line: str) -> None:
    spec = read(line)
    assert (hosts(spec), spec.np, spec.steps) == ([("a", 2), ("b", 2)], 4, ("python train.py",))


@pytest.mark.parametrize("flag", ["--hostfile", "-hostfile", "-machinefile", "-f", "--default-hostfile"])
def test_a_hostfile_gives_the_hosts(flag: str) -> None:
    spec = read(f"mpirun -np 5 {flag} hosts.txt python train.py")
    assert (hosts(spec), spec.size) == ([("a", 2), ("b", 4)], 5)


def test_hosts_and_hostfile_choose_among_its_hosts() -> None:
    assert hosts(read("mpirun --hostfile hosts.txt -H b:3 python train.py")) == [("b", 3)]
    assert refused("mpirun --hostfile hosts.txt -H c python train.py") == (
        "hosts.txt: the hostfile does not have c, which -H names."
    )


def test_a_hostfile_that_is_not_there_leaves_open_where_ranks_run() -> None:
    spec = read("mpirun -np 2 --hostfile /generated/hostfile python train.py")
    assert (hosts(spec), spec.size, spec.hostfile) == ([("", 2)], 2, "/generated/hostfile")
    assert spec.warnings == (("the hostfile /generated/hostfile does not exist here: -H host:slots names the hosts"),)


def test_ranks_beyond_the_slots_go_to_all_hosts_in_turn_where_the_line_allows_it() -> None:
    assert hosts(read("mpirun -np 7 -H a:1,b:2 --oversubscribe python train.py")) == [("a", 3), ("b", 4)]
    assert refused("mpirun -np 7 -H a:1,b:2 python train.py") == (
        "the command line: -np 7 ranks do not fit on a:1,b:2, which has 3 slot(s): give hosts more of them (host:8), or "
        "write --oversubscribe."
    )


def test_without_hosts_it_is_left_open_where_ranks_run() -> None:
    spec = read("mpirun -np 3 python train.py")
    assert (hosts(spec), spec.size, spec.warnings) == ([("", 3)], 3, ())
    assert read("mpirun python train.py").warnings == (
        "the line gives no number of ranks, 1 is assumed: -np N sets it",
    )


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("mpirun -np 1 -x A -x B=1 -x 'C=x y' -x D= python a.py", {"A": None, "B": "1", "C": "x y", "D": ""}),
        ("mpirun -np 1 -genv A 1 -env B 2 -genvlist C,D python a.py", {"A": "1", "B": "2", "C": None, "D": None}),
        ("A=1 B='x y' mpirun -np 1 -x A -x C python a.py", {"A": "1", "B": "x y", "C": None}),
    ],
)
def test_variables_are_set_or_taken_over(line: str, wanted: dict[str, str | None]) -> None:
    assert {each.name: each.value for each in read(line).environment} == wanted


def test_interfaces_for_tcp_are_the_ranks_interfaces() -> None:
    spec = read(
        "mpirun -np 1 -mca btl_tcp_if_include eth0,ib0 -mca oob_tcp_if_include eth0 "
        "-mca btl_tcp_if_exclude lo,docker0 python a.py"
    )
    assert spec.interfaces == ("eth0", "ib0")
    assert spec.warnings == (
        (
            "-mca btl_tcp_if_exclude lo,docker0 is ignored: "
            "use `hvdrun --network-interfaces` to choose the ranks' interfaces"
        ),
    )


def test_parameters_of_open_mpi_are_kept_for_an_mpi_that_starts_the_ranks() -> None:
    line = "mpirun -np 1 -mca pml ob1 --mca btl ^openib -mca btl openib,self -gmca btl ^openib,tcp python a.py"
    assert read(line).mca == (("pml", "ob1"), ("btl", "self"), ("btl", "^tcp"))


def test_subnets_are_no_interfaces() -> None:
    spec = read("mpirun -np 1 -mca btl_tcp_if_include 10.0.0.0/8 python a.py")
    assert (spec.interfaces, len(spec.warnings)) == ((), 1)


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("-bind-to core", "ranks fill the hosts in order and are not bound to cores"),
        ("-map-by node", "ranks fill the hosts in order, as with -map-by slot"),
        ("-mca pml ob1", "ranks choose their links (shared memory, TCP) themselves, without Open MPI"),
        ("-mca plm_rsh_args '-p 12345'", "use `hvdrun -p`, or ~/.ssh/config"),
        (
            "--tag-output",
            "each line already has its rank as prefix, and `hvdrun --prefix-output-with-timestamp` adds the time",
        ),
        ("--output-filename logs", "`hvdrun --output-filename DIR` keeps each rank's output"),
        ("--prefix /opt/openmpi", "hvdrun's own agents start the ranks"),
        ("-rmk slurm", "hvdrun's own agents start the ranks"),
        ("...", "it stands for flags that are not shown"),
    ],
)
def test_what_only_tunes_mpi_is_ignored_with_a_word_on_what_is_done(flag: str, why: str) -> None:
    spec = read(f"mpirun {flag} -np 2 python train.py")
    assert spec.warnings == (f"{flag} is ignored: {why}",)
    assert (spec.np, spec.steps) == (2, ("python train.py",))


@pytest.mark.parametrize("flag", ["-map-by slot", "--allow-run-as-root", "-q", "-genvall"])
def test_what_holds_anyway_is_not_worth_a_word(flag: str) -> None:
    assert read(f"mpirun {flag} -np 2 python train.py").warnings == ()


@pytest.mark.parametrize(
    ("command", "step"),
    [
        ("python train.py --dir $HOME/data", "python train.py --dir $HOME/data"),
        ("python train.py --name 'a b' \\\n  --lr 0.1", "python train.py --name 'a b' --lr 0.1"),
        ("python train.py -np 4 -x A", "python train.py -np 4 -x A"),
        ("sh -c 'python a.py | tee log'", "sh -c 'python a.py | tee log'"),
        ('python train.py --filter "a && b"', 'python train.py --filter "a && b"'),
    ],
)
def test_the_command_is_as_it_was_written(command: str, step: str) -> None:
    assert read(f"mpirun -np 2 {command}").steps == (step,)


def test_a_line_without_a_command_still_plans() -> None:
    spec = read("mpirun -np 2 -H a:2 ...")
    assert (spec.steps, spec.size) == ((), 2)
    assert spec.warnings[-1] == "the line has no command: `job run` needs one"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "mpirun -np 1 python a.py : -np 1 python b.py",
            "':' begins a second program (MPMD), and all ranks run the same one: write one line for all.",
        ),
        (
            "mpirun -np 2 python a.py 2>&1 | tee log",
            "'2>&1' belongs to the shell, and only a single command is read: leave out this and what follows, or put it in quotes.",
        ),
        (
            "mpirun -np 2 python a.py && echo done",
            "'&&' belongs to the shell, and only a single command is read: leave out this and what follows, or put it in quotes.",
        ),
        (
            "mpirun -np 2 python a.py\nmpirun -np 2 python b.py",
            "'mpirun' begins a second line: end the first with a backslash, or leave it out.",
        ),
        ("mpirun -np four python a.py", "-np four: 'four' must be a whole number, from 1 to 100000."),
        ("mpirun -np 0 python a.py", "-np 0: '0' must be a whole number, from 1 to 100000."),
        ("mpirun -np4 python a.py", "'-np4' is not a flag: write -np 4, with a space."),
        ("mpirun -np", "-np wants a value, and the line ends there."),
        ("mpirun -mca pml", "-mca wants 2 values, and the line ends there."),
        ("mpirun -np 2 -H a:x python a.py", "-H a:x: 'a:x' is not a host with its slots: write host:4"),
        ("mpirun -np 2 'python a.py", "no closing quotation: close it, or write a backslash before the quote."),
        (
            "mpirun -np 2 --hostfil h python a.py",
            (
                "'--hostfil' is not a flag known here: did you mean --hostfile? known flags: "
                "-c, --default-hostfile, --env,"
            ),
        ),
        (
            "mpirun -rf ranks.txt python a.py",
            "-rf: the order in it is not read: write -H host:slots in the order of the ranks.",
        ),
        ("mpirun --version", "--version: it starts no job: leave it out."),
    ],
)
def test_what_is_wrong_with_a_line_is_named(line: str, wanted: str) -> None:
    assert refused(line).startswith(f"the command line: {wanted}")


def test_horovodruns_flags_are_variables_hosts_and_interfaces() -> None:
    spec = read(
        "horovodrun -np 8 -H a:4,b:4 --network-interface eth0,ib0 --fusion-threshold-mb 32 --cycle-time-ms 3.5 "
        "--autotune --no-stall-check --log-level INFO --tcp -p 12345 --mpi python train.py"
    )
    assert (spec.kind, hosts(spec), spec.np, spec.steps) == (
        "horovodrun",
        [("a", 4), ("b", 4)],
        8,
        ("python train.py",),
    )
    assert spec.interfaces == ("eth0", "ib0")
    assert {each.name: each.value for each in spec.environment} == {
        "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
        "HOROVOD_CYCLE_TIME": "3.5",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_LOG_LEVEL": "INFO",
        "NCCL_IB_DISABLE": "1",
    }
    assert spec.warnings == (
        "-p 12345 is ignored: use `hvdrun -p`, or ~/.ssh/config",
        "--mpi is ignored: ranks meet without MPI; `hvdrun --mpi` starts them with it",
    )


def test_horovodrun_of_an_elastic_job_is_planned_as_it_starts() -> None:
    spec = read("horovodrun -np 8 --min-np 4 -H a:4,b:4 --blacklist-cooldown-range 1 2 python train.py")
    assert (spec.size, [replica.host for replica in spec.replicas]) == (8, ["a", "b"])
    assert [warning.partition(": ")[0] for warning in spec.warnings] == [
        "--min-np 4 is ignored",
        "--blacklist-cooldown-range 1 2 is ignored",
    ]
    assert all("lets the size change" in warning for warning in spec.warnings)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("horovodrun -H a,b:2 --slots-per-host 3 python train.py", [("a", 3), ("b", 2)]),
        ("horovodrun --slots 3 --hosts a,b:2 -np 5 python train.py", [("a", 3), ("b", 2)]),
        ("hvdrun --hostfile bare.txt --slots=2 python train.py", [("c", 2), ("d", 5)]),
    ],
)
def test_slots_per_host_are_those_of_hosts_that_do_not_say_theirs(line: str, wanted: list[tuple[str, int]]) -> None:
    """hvdrun takes it from its own line, and `job plan -- horovodrun ...` refused it."""
    spec = formats.read(line, "the command line", "", {"bare.txt": "c\nd slots=5\n"}.get)
    assert (hosts(spec), spec.warnings) == (wanted, ())


def test_slots_per_host_without_hosts_are_ignored() -> None:
    assert read("horovodrun -np 2 --slots 3 python a.py").warnings == (
        "--slots 3 is ignored: it is for hosts of -H or --hostfile that are given without slots",
    )
    assert refused("horovodrun -H a --slots-per-host two python a.py").endswith(
        "must be a whole number, from 1 to 100000."
    )
    assert "'--slots' is not a flag known here" in refused("mpirun -np 2 --slots 3 python a.py")


@pytest.mark.parametrize(
    ("begun", "whole"),
    [
        ("--num-p 2", "-np 2"),
        ("-n 2", "-np 2"),
        ("--num-p=2 --netw eth0", "-np 2 --network-interface eth0"),
        ("-host hosts.txt", "--hostfile hosts.txt"),
        ("-np 2 --fusion 64 --torus", "-np 2 --fusion-threshold-mb 64 --torus-allreduce"),
        ("-np 2 --verb --disable --gloo-t 7", "-np 2 --verbose --disable-cache --gloo-timeout-seconds 7"),
        ("-np 2 --log-witho", "-np 2 --log-without-timestamp"),
    ],
)
def test_a_flag_of_horovodrun_may_be_abbreviated_as_argparse_allows(begun: str, whole: str) -> None:
    """hvdrun takes it so from its own line; a job's line was refused."""
    assert read(f"horovodrun {begun} python train.py") == read(f"horovodrun {whole} python train.py")


def test_what_is_ignored_is_named_as_it_was_written() -> None:
    assert read("horovodrun -np 2 --ssh-p 22 python a.py").warnings == (
        "--ssh-p 22 is ignored: use `hvdrun -p`, or ~/.ssh/config",
    )


@pytest.mark.parametrize(
    ("begun", "candidates"),
    [
        ("--host a:2", "--host may be --hostfile or --hosts or --host-discovery-script: write it out."),
        ("--log-with", "--log-with may be --log-with-timestamp or --log-without-timestamp: write it out."),
        ("--timeline=t", "--timeline may be --timeline-filename or --timeline-mark-cycles: write it out."),
    ],
)
def test_an_abbreviation_of_several_flags_names_them(begun: str, candidates: str) -> None:
    assert refused(f"horovodrun -np 2 {begun} python a.py") == f"the command line: {candidates}"


@pytest.mark.parametrize(
    ("line", "unknown"),
    [
        ("mpirun --num-p 2 python a.py", "'--num-p'"),
        ("mpirun -hostf h python a.py", "'-hostf'"),
        ("horovodrun --slow 2 python a.py", "'--slow'"),
        ("horovodrun - 2 python a.py", "'-'"),
    ],
)
def test_mpirun_has_no_abbreviations_and_what_begins_no_flag_is_unknown(line: str, unknown: str) -> None:
    assert f"{unknown} is not a flag known here" in refused(line)


def test_hosts_of_horovodrun_are_no_more_oversubscribed_than_h() -> None:
    """Hydra's -hosts begins with the first host again; horovodrun's has slots."""
    for flag in ("-H", "--hosts"):
        assert "-np 3 ranks do not fit on a:1,b:1" in refused(f"horovodrun -np 3 {flag} a,b python a.py")


@pytest.mark.parametrize("knob", knobs.KNOBS, ids=lambda knob: knob.key)
def test_each_of_hvdruns_knobs_is_read_as_the_same_variable(knob: knobs.Knob) -> None:
    sides = [(flag, "1") for flag in knob.flags] + [(flag, "0") for flag in knob.off]
    for flag, side in sides:
        text = side if knob.switch else "7"
        value = HOROVOD[flag.lstrip("-")]
        assert value.nargs == (0 if knob.switch else 1)
        [variable] = read(f"horovodrun -np 1 {flag} {'' if knob.switch else text} python a.py").environment
        assert (variable.name, variable.value) == (knob.variable, knob.turn(text))


def test_each_flag_of_hvdrun_has_its_dashes_in_a_jobs_line_too() -> None:
    ours = {name for table in (flags.ACTIONS, flags.JOB) for names in table for name in names}
    ours |= {flag for row in elastic.FLAGS for flag in row.flags}
    ours |= {flag for knob in knobs.KNOBS for flag in (*knob.flags, *knob.off)}
    assert set(HOROVOD_SPELLED.flags) == ours | {"-h", "--help"}


def test_each_of_hvdruns_other_flags_is_in_the_table_with_as_many_values() -> None:
    for table in (flags.ACTIONS, flags.JOB):
        for names, how in table.items():
            none = how.get("action") == "store_true"
            for name in names:
                assert HOROVOD[name.lstrip("-")].nargs == (0 if none else 1), name
    for row in elastic.FLAGS:
        assert {HOROVOD[flag.lstrip("-")].nargs for flag in row.flags} == {row.nargs}


@pytest.mark.parametrize("table", [MPI, HOROVOD], ids=["mpi", "horovod"])
def test_what_is_ignored_or_refused_says_why(table) -> None:
    silent = [name for name, flag in table.items() if flag.use in ("ignored", "refused") and not flag.note]
    assert silent == []
