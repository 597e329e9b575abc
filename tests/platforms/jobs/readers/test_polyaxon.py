"""Polyaxon's files: both spellings, what wins over what, what is refused with its place, and components of 1.1."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_kernel.jobs import Bounds, JobError, JobSpec, Resources, Variable, formats

GIB = 2**30
FILE = (Path(__file__).parents[2] / "data" / "polyaxonfile.yml").read_text()


def read(text: str) -> JobSpec:
    return formats.read(text, "polyaxonfile.yml")


def cpus(spec: JobSpec) -> list[float | None]:
    return [replica.resources.cpu.limit for replica in spec.replicas]


def refused(text: str) -> str:
    with pytest.raises(JobError) as error:
        read(text)
    return str(error.value)


def test_the_earlier_spelling_with_horovod_means_the_same() -> None:
    assert read(FILE.replace("  replicas:", "  horovod:")) == read(FILE)


def test_the_oldest_spelling_with_resources_at_the_top_means_the_same() -> None:
    oldest = """
environment:
  resources: {cpu: {limits: 1}}
  %s
  %s
"""
    wanted = [1, 2, 2, 4]
    inside = (
        "{n_workers: 3, default_worker_resources: {cpu: {limits: 2}}, worker_resources: [{index: 2, cpu: {limits: 4}}]}"
    )
    assert cpus(read(oldest % (f"horovod: {inside}", ""))) == wanted
    above = "default_worker_resources: {cpu: {limits: 2}}", "worker_resources: [{index: 2, cpu: {limits: 4}}]"
    assert cpus(read(oldest % ("replicas: {n_workers: 3}", "\n  ".join(above)))) == wanted


def test_a_worker_of_its_own_without_resources_has_the_default_ones() -> None:
    spec = read(
        "environment: {replicas: {n_workers: 2, default_worker: {resources: {cpu: {limits: 3}}},"
        " worker: [{index: 1, node_selector: {a: b}}]}}"
    )
    assert cpus(spec) == [None, 3, 3]
    assert spec.warnings[0] == (
        "environment.replicas.worker.0.node_selector is ignored: only the scheduler of Polyaxon's cluster uses it"
    )


@pytest.mark.parametrize("section", ["n_workers: 0", "n_workers: 0, default_worker: {resources: {gpu: {limits: 1}}}"])
def test_without_workers_the_master_is_alone(section: str) -> None:
    spec = read(f"framework: horovod\nenvironment: {{replicas: {{{section}}}}}\nrun: {{cmd: python a.py}}\n")
    assert [(replica.role, replica.index) for replica in spec.replicas] == [("master", 0)]
    assert spec.size == 1


HEAD = "framework: horovod\nenvironment:\n  replicas:\n    n_workers: 3\n    worker:\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            HEAD + "      - index: 3\n",
            (
                "polyaxonfile.yml:6:16: environment.replicas.worker.0.index: "
                "there is no worker 3: n_workers is 3, allowed: 0 to 2."
            ),
        ),
        (
            HEAD + "      - index: -1\n",
            (
                "polyaxonfile.yml:6:16: environment.replicas.worker.0.index: "
                "there is no worker -1: n_workers is 3, allowed: 0 to 2."
            ),
        ),
        (
            HEAD + "      - index: 2\n      - index: 2\n",
            (
                "polyaxonfile.yml:7:16: environment.replicas.worker.1.index: "
                "worker 2 appears twice: keep one entry for each worker."
            ),
        ),
        (
            "environment:\n  replicas: {n_workers: four}\n",
            "polyaxonfile.yml:2:25: environment.replicas.n_workers: must be a whole number, not text.",
        ),
        (
            "environment:\n  replicas: {n_workers: -1}\n",
            "polyaxonfile.yml:2:25: environment.replicas.n_workers: must be a whole number, >= 0.",
        ),
        (
            "environment:\n  horovod: {n_workers: 1}\n  replicas: {n_workers: 1}\n",
            "polyaxonfile.yml:2:12: environment.horovod: excludes replicas, which says the same: keep one of them.",
        ),
        (
            "environment:\n  horovod: {n_workers: 1}\n  tensorflow: {n_workers: 1, n_ps: 1}\n",
            (
                "polyaxonfile.yml:3:15: environment.tensorflow: is another framework's section; "
                "allowed: replicas and horovod, one of them."
            ),
        ),
        (
            "framework: pytorch\nenvironment:\n  replicas: {n_workers: 1}\n",
            "polyaxonfile.yml:1:12: framework: 'pytorch' with replicas; allowed: horovod.",
        ),
        (
            "framework: horovod\nenvironment:\n  replicas: {n_wokers: 1}\n",
            (
                "polyaxonfile.yml:3:24: environment.replicas.n_wokers: is unknown here: did you mean 'n_workers'? allowed: "
                "default_worker, default_worker_affinity, default_worker_config, default_worker_node_selector, "
                "default_worker_node_selectors, default_worker_resources, default_worker_tolerations, n_workers, worker, "
                "worker_affinities, worker_configs, worker_node_selectors, worker_resources, worker_tolerations."
            ),
        ),
        (
            "framework: horovod\nenvironment:\n  resources:\n    cpu: {requests: 4, limits: 2}\n",
            (
                "polyaxonfile.yml:4:10: environment.resources.cpu: "
                "request 4 is above limit 2: raise the limit or lower the request."
            ),
        ),
        (
            "framework: horovod\nenvironment:\n  resources:\n    memory: {limits: much}\n",
            (
                "polyaxonfile.yml:4:13: environment.resources.memory: "
                "'much' is not an amount of memory: write 4096, 512M or 4G."
            ),
        ),
        (
            "kind: notebook\nframework: horovod\n",
            "polyaxonfile.yml:1:7: kind: 'notebook' is not a job of ranks; allowed: experiment, group.",
        ),
        (
            "framework: horovod\nrun: {cmd: 'python a.py --lr {{ rate }}'}\ndeclarations: {lr: 1}\n",
            "polyaxonfile.yml:2:12: run.cmd: {{ rate }} has no value: there are lr.",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_what_is_allowed(text: str, wanted: str) -> None:
    assert refused(text) == wanted


def test_lines_of_cmd_are_steps_with_their_declarations() -> None:
    spec = read(
        "framework: horovod\nname: mnist\ndeclarations: {lr: 0.1, epochs: 3}\nrun:\n  cmd:\n"
        "    - pip install -r requirements.txt\n    - python train.py --lr={{ lr }} --epochs={{epochs}}\n"
        "build: {image: 'python:3.11', env_vars: [[A, 1], [B, x]]}\n"
    )
    assert spec.steps == ("pip install -r requirements.txt", "python train.py --lr=0.1 --epochs=3")
    assert (spec.name, spec.image) == ("mnist", "python:3.11")
    assert spec.environment == (Variable("A", "1"), Variable("B", "x"))


def test_what_only_polyaxon_could_use_is_ignored_with_a_word_why() -> None:
    spec = read(
        "framework: horovod\nhptuning: {concurrency: 2}\nenvironment: {persistence: {data: [a]}, node_selector: {a: b},"
        " secret_refs: [s], max_restarts: 2, resources: {tpu: {limits: 8}}}\nrun: {cmd: python a.py}\n"
    )
    assert spec.warnings == (
        "hptuning is ignored: this is one job, no search over several",
        "environment.node_selector is ignored: only the scheduler of Polyaxon's cluster uses it",
        "environment.secret_refs is ignored: it names an object in Polyaxon's cluster",
        "environment.max_restarts is ignored: a job is started once, and its status is the command's",
        "environment.persistence is ignored: ranks see the files of the machine that they run on",
        "environment.resources.tpu is ignored: there are no TPUs here",
    )


def test_text_with_units_counts_as_it_says() -> None:
    spec = read(
        "framework: horovod\nenvironment: {resources: {cpu: {limits: 500m}, memory: {requests: 1Gi, limits: 2048}}}\n"
    )
    assert spec.replicas[0].resources == Resources(Bounds(None, 0.5), Bounds(GIB, 2 * GIB))


COMPONENT = """\
version: 1.1
kind: component
name: mnist
inputs:
  - {name: lr, type: float, value: 0.1, isOptional: true}
termination: {maxRetries: 3}
run:
  kind: mpijob
  slotsPerWorker: 2
  cleanPodPolicy: Running
  launcher:
    replicas: 1
    container:
      image: horovod/horovod:latest
      command: [mpirun, -np, "4", --allow-run-as-root, -x, NCCL_DEBUG, python, train.py, "--lr={{ lr }}"]
      env: [{name: NCCL_DEBUG, value: INFO}]
  worker:
    replicas: 2
    container:
      image: horovod/horovod:0.28
      resources: {requests: {cpu: 500m}, limits: {cpu: 2, memory: 4Gi, nvidia.com/gpu: 2}}
      env: [{name: A, value: true}]
"""


def test_a_component_has_workers_with_slots_and_the_launchers_line_is_the_step() -> None:
    spec = read(COMPONENT)
    assert [(r.role, r.index, r.slots) for r in spec.replicas] == [("worker", 0, 2), ("worker", 1, 2)]
    assert spec.replicas[0].resources == Resources(Bounds(0.5, 2), Bounds(None, 4 * GIB), 2)
    assert (spec.size, spec.steps) == (4, ("python train.py --lr=0.1",))
    assert (spec.name, spec.image) == ("mnist", "horovod/horovod:0.28")
    assert spec.environment == (Variable("A", "true"), Variable("NCCL_DEBUG", "INFO"))
    assert spec.warnings == (
        "termination is ignored: it is for Polyaxon's cluster",
        "run.cleanPodPolicy is ignored: it is for Polyaxon's cluster",
    )


def test_an_operation_gives_its_component_values() -> None:
    below = "".join(f"  {line}\n" for line in COMPONENT.splitlines())
    spec = read(f"version: 1.1\nkind: operation\nparams: {{lr: {{value: 0.5}}}}\ncomponent:\n{below}")
    assert spec.steps == ("python train.py --lr=0.5",)


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        (
            "kind: mpijob",
            "kind: tfjob",
            "polyaxonfile.yml:8:9: run.kind: 'tfjob' is not a job of ranks; allowed: mpijob.",
        ),
        (
            "    replicas: 2",
            "    replicas: two",
            "polyaxonfile.yml:18:15: run.worker.replicas: must be a whole number, not text.",
        ),
        (
            '"4"',
            '"5"',
            (
                "polyaxonfile.yml:14:7: run.launcher.container: -np 5 ranks do not fit: there are 4 slot(s). Lower -np or add "
                "workers."
            ),
        ),
        (
            "slotsPerWorker",
            "slotPerWorker",
            (
                "polyaxonfile.yml:9:18: run.slotPerWorker: is unknown here: did you mean 'slotsPerWorker'? read are kind, "
                "slotsPerWorker, launcher, worker."
            ),
        ),
        (
            "--allow-run-as-root",
            "--alow-run-as-root",
            "polyaxonfile.yml:14:7: run.launcher.container: '--alow-run-as-root' is not a flag",
        ),
        ("4Gi", "4Gx", "polyaxonfile.yml:21:18: run.worker.container.resources: '4Gx' is not a quantity"),
    ],
)
def test_what_is_wrong_with_a_component_is_named_with_its_place(old: str, new: str, wanted: str) -> None:
    assert refused(COMPONENT.replace(old, new)).startswith(wanted)


def test_a_component_that_stands_elsewhere_is_not_fetched() -> None:
    assert refused("version: 1.1\nkind: operation\nhubRef: acme/mnist\n") == (
        "polyaxonfile.yml:1:1: component is missing: one that is stored elsewhere (hubRef, pathRef) is not fetched."
    )


@pytest.mark.parametrize(
    ("command", "step", "folder"),
    [
        ('[sh, -c, "mpirun -np 4 python train.py --lr {{ lr }}"]', "python train.py --lr 0.1", ""),
        ('[bash, -ec, "cd /code\\nmpirun -np 4 python train.py"]', "python train.py", "/code"),
        ("mpirun -np 4 python train.py", "python train.py", ""),
        ("[python, train.py, --name, a b]", "python train.py --name 'a b'", ""),
    ],
)
def test_a_launcher_may_be_a_shell_or_no_mpirun_at_all(command: str, step: str, folder: str) -> None:
    lines = [f"      command: {command}" if "command:" in line else line for line in COMPONENT.splitlines()]
    spec = read("\n".join(lines))
    assert (spec.steps, spec.workdir, spec.size) == ((step,), folder, 4)


def test_a_variable_that_the_launcher_does_not_have_stays_the_workers() -> None:
    spec = read(COMPONENT.replace("-x, NCCL_DEBUG", "-x, A, -x, NCCL_DEBUG"))
    assert spec.environment == (Variable("A", "true"), Variable("NCCL_DEBUG", "INFO"))
