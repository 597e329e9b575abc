"""Manifests as people have them: the operators' own examples, the rules of their controllers, what is ignored."""

from __future__ import annotations

import pytest

from hvd_kernel.jobs import Bounds, JobError, JobSpec, Replica, Resources, Variable, formats

BENCHMARKS = """
# kubeflow/mpi-operator, examples/v2beta1/tensorflow-benchmarks.yaml
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: tensorflow-benchmarks
spec:
  slotsPerWorker: 1
  runPolicy:
    cleanPodPolicy: Running
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
         spec:
           containers:
           - image: mpioperator/tensorflow-benchmarks:latest
             name: tensorflow-benchmarks
             command: [mpirun, --allow-run-as-root, -np, "2", -bind-to, none, -map-by, slot, -x, NCCL_DEBUG=INFO, -x, PATH,
               -mca, pml, ob1, -mca, btl, ^openib, python, tf_cnn_benchmarks.py, --model=resnet101]
    Worker:
      replicas: 2
      template:
        spec:
          containers:
          - image: mpioperator/tensorflow-benchmarks:latest
            name: tensorflow-benchmarks
            resources:
              limits:
                nvidia.com/gpu: 1
"""
TRAIN = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: it}
spec:
  runtimeRef: {name: deepspeed-distributed}
  trainer: {image: train, command: [mpirun, python, train.py], numNodes: 2, resourcesPerNode: {limits: {nvidia.com/gpu: 4}}}
"""
INDEXED = """
apiVersion: v1
kind: Service
metadata: {name: other}
---
apiVersion: batch/v1
kind: Job
metadata: {name: it}
spec:
  completionMode: Indexed
  completions: 3
  parallelism: 3
  template:
    spec:
      containers: [{name: a, image: train, command: [python, train.py], args: ["a b"]}, {name: log, image: x}]
      initContainers: [{name: b, image: b}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}, {name: scratch, emptyDir: {}}]
"""


def read(text: str) -> JobSpec:
    return formats.read(text, "job.yml")


def refused(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, "the mistake is made in one place"
    with pytest.raises(JobError) as error:
        read(text.replace(old, new))
    return str(error.value)


def test_the_operators_own_example() -> None:
    spec = read(BENCHMARKS)
    each = Resources(gpus=1)
    assert (spec.kind, spec.name, spec.size) == ("mpijob", "tensorflow-benchmarks", 2)
    assert spec.replicas == (Replica(resources=each), Replica(index=1, resources=each))
    assert spec.steps == ("python tf_cnn_benchmarks.py --model=resnet101",)
    assert spec.environment == (Variable("NCCL_DEBUG", "INFO"), Variable("PATH"))


def test_a_launcher_that_is_a_worker_comes_first() -> None:
    spec = read(BENCHMARKS.replace("  slotsPerWorker: 1\n", "  slotsPerWorker: 2\n  runLauncherAsWorker: true\n"))
    assert [(each.role, each.index, each.slots, each.resources.gpus) for each in spec.replicas] == [
        ("launcher", 0, 2, None),
        ("worker", 0, 2, 1),
        ("worker", 1, 2, 1),
    ]
    assert spec.np == 2


RULES = [
    ("  slotsPerWorker: 1\n", "  slotsPerWorker: -1\n", "8:19: spec.slotsPerWorker: must be a whole number, >= 0."),
    (
        "  slotsPerWorker: 1\n",
        "  slotsPerWorker: 0\n",
        "8:19: spec.slotsPerWorker: must be at least 1: no rank has a place.",
    ),
    (
        "  slotsPerWorker: 1\n",
        "  slotPerWorker: 1\n",
        (
            "8:18: spec.slotPerWorker: is unknown here: did you mean 'slotsPerWorker'? allowed: launcherCreationPolicy, "
            "mpiImplementation, mpiReplicaSpecs, runLauncherAsWorker, runPolicy, slotsPerWorker, sshAuthMountPath."
        ),
    ),
    (
        "cleanPodPolicy: Running",
        "cleanPodPolicy: Always",
        "10:21: spec.runPolicy.cleanPodPolicy: 'Always' is not known: it must be one of None, Running, All.",
    ),
    (
        "cleanPodPolicy: Running",
        "ttlSecondsAfterFinished: -1",
        "10:30: spec.runPolicy.ttlSecondsAfterFinished: must be a whole number, >= 0.",
    ),
    (
        "cleanPodPolicy: Running",
        "activeDeadlineSeconds: -1",
        "10:28: spec.runPolicy.activeDeadlineSeconds: must be a whole number, >= 0.",
    ),
    (
        "cleanPodPolicy: Running",
        "backoffLimit: -1",
        "10:19: spec.runPolicy.backoffLimit: must be a whole number, >= 0.",
    ),
    (
        "cleanPodPolicy: Running",
        "managedBy: me",
        (
            "10:16: spec.runPolicy.managedBy: 'me' is not known: it must be one of kubeflow.org/mpi-operator, "
            "kueue.x-k8s.io/multikueue."
        ),
    ),
    (
        "  slotsPerWorker: 1\n",
        "  mpiImplementation: LAM\n",
        "8:22: spec.mpiImplementation: 'LAM' is not known: it must be one of OpenMPI, Intel, MPICH.",
    ),
    (
        "  slotsPerWorker: 1\n",
        "  launcherCreationPolicy: Late\n",
        "8:27: spec.launcherCreationPolicy: 'Late' is not known: it must be one of AtStartup, WaitForWorkersReady.",
    ),
    (
        "  slotsPerWorker: 1\n",
        "  sshAuthMountPath: ''\n",
        "8:21: spec.sshAuthMountPath: must be a folder: leave it out for /root/.ssh.",
    ),
    (
        "    Launcher:\n      replicas: 1\n",
        "    Launcher:\n      replicas: 2\n",
        "13:17: spec.mpiReplicaSpecs.Launcher.replicas: must be 1, not 2.",
    ),
    (
        "    Launcher:\n      replicas: 1\n",
        "    Launcher:\n      restartPolicy: Always\n",
        "13:22: spec.mpiReplicaSpecs.Launcher.restartPolicy: 'Always' is not known: it must be one of Never, OnFailure.",
    ),
    (
        "    Launcher:\n",
        "    Master:\n",
        "13:7: spec.mpiReplicaSpecs.Master: is unknown here: allowed: Launcher, Worker.",
    ),
    (
        "      replicas: 2\n",
        "      replicas: 0\n",
        "22:17: spec.mpiReplicaSpecs.Worker.replicas: must be at least 1, not 0.",
    ),
    (
        "      replicas: 2\n",
        "      restartPolicy: Always\n",
        "22:22: spec.mpiReplicaSpecs.Worker.restartPolicy: 'Always' is not known: it must be one of Never, OnFailure.",
    ),
    ("      replicas: 2\n", "", "22:7: spec.mpiReplicaSpecs.Worker.replicas: must be at least 1, it is missing."),
    (
        "  name: tensorflow-benchmarks\nspec",
        "  labels: {}\nspec",
        "6:3: metadata.name: is missing: the pods are called by it.",
    ),
    (
        "  name: tensorflow-benchmarks\nspec",
        f"  name: {'a' * 55}\nspec",
        (
            f"6:9: metadata.name: '{'a' * 55}' is too long for this MPIJob: the name of its pod {'a' * 55}-worker-1 has 64 "
            "characters, and 63 are allowed: shorten it by 1."
        ),
    ),
    (
        "kubeflow.org/v2beta1",
        "kubeflow.org/v1",
        "3:13: apiVersion: 'kubeflow.org/v1' is not known for kind MPIJob: it must be kubeflow.org/v2beta1.",
    ),
    (
        "nvidia.com/gpu: 1",
        "cpu: many",
        "30:22: {}.resources.limits.cpu: 'many' is not a quantity: write 2, 0.5, 500m, 256M or 1Gi.",
    ),
    ('"2"', '"3"', "19:23: {}.command: -np 3 ranks do not fit: there are 2 slot(s). Lower -np or add workers."),
    ('"2"', '"x"', "19:23: {}.command: -np x: 'x' must be a whole number, from 1 to 100000."),
]


@pytest.mark.parametrize(("old", "new", "text"), RULES)
def test_the_rules_of_the_mpijobs_controller(old: str, new: str, text: str) -> None:
    role = "Worker" if "resources" in text else "Launcher"
    text = text.replace("{}", f"spec.mpiReplicaSpecs.{role}.template.spec.containers.0")
    assert refused(BENCHMARKS, old, new) == f"job.yml:{text}"


def test_a_launcher_is_needed_and_containers_are() -> None:
    start, end = BENCHMARKS.index("    Launcher:"), BENCHMARKS.index("    Worker:")
    where = "job.yml:12:5: spec.mpiReplicaSpecs.Launcher: is missing: an MPIJob has one."
    assert refused(BENCHMARKS, BENCHMARKS[start:end], "") == where
    launcher = "    Launcher: {replicas: 1, template: {spec: {containers: []}}}\n"
    assert refused(BENCHMARKS, BENCHMARKS[start:end], launcher) == (
        "job.yml:12:59: spec.mpiReplicaSpecs.Launcher.template.spec.containers: at least one container is needed."
    )


def test_a_trainjob_and_what_its_runtime_says() -> None:
    spec = read(TRAIN)
    assert (spec.kind, spec.name, spec.image, spec.steps) == ("trainjob", "it", "train", ("python train.py",))
    assert spec.replicas == tuple(Replica(index=index, slots=4, resources=Resources(gpus=4)) for index in range(2))
    assert (
        spec.warnings
        == (
            "spec.trainer.numProcPerNode is missing: it is in the runtime, one per GPU is assumed",
            "spec.initializer is ignored: what it downloads must already exist",
        )[:1]
    )
    warned = read(TRAIN.replace("spec:\n", "spec:\n  initializer: {}\n", 1)).warnings
    assert warned[1] == "spec.initializer is ignored: what it downloads must already exist"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("name: it", "name: It", ("4:18: metadata.name: 'It' is not a TrainJob's name (small letters, digits and dashes, a letter "
         "first), such as 'it'.")),
        ("{name: deepspeed-distributed}", "{}", "6:15: spec.runtimeRef.name: is missing."),
        ("numNodes: 2", "numNodes: 0", "7:74: spec.trainer.numNodes: must be a whole number, >= 1."),
        ("numNodes: 2", "numProcPerNode: auto", "7:80: spec.trainer.numProcPerNode: must be a whole number, not text."),
        ("distributed}", "distributed, kind: Pod}", ("6:51: spec.runtimeRef.kind: 'Pod' is not known: it must be one of "
         "ClusterTrainingRuntime, TrainingRuntime.")),
        ("spec:\n", "spec:\n  managedBy: me\n", ("6:14: spec.managedBy: 'me' is not known: it must be one of "
         "trainer.kubeflow.org/trainjob-controller, kueue.x-k8s.io/multikueue.")),
        ("spec:\n", "spec:\n  activeDeadlineSeconds: 0\n", "6:26: spec.activeDeadlineSeconds: must be a whole number, >= 1."),
    ],
)  # fmt: skip
def test_the_rules_of_the_trainer(old: str, new: str, text: str) -> None:
    assert refused(TRAIN, old, new) == f"job.yml:{text}"


def test_an_indexed_job_of_others() -> None:
    spec = read(INDEXED)
    assert (spec.kind, spec.size, spec.steps, spec.rendezvous) == ("job", 3, ("python train.py 'a b'",), None)
    assert spec.warnings == (
        "spec.template.spec.initContainers is ignored: what they prepare must already exist",
        "spec.template.spec.volumes is ignored: data must already exist",
        "spec.template.spec.containers: 1 beside the first is ignored: it has the ranks",
    )


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("parallelism: 3", "parallelism: 2", ("12:16: spec.parallelism: must be 3, as completions: ranks of pods that do not run "
         "are waited for.")),
        ("  completionMode: Indexed\n", "", "10:3: spec.completionMode: must be Indexed: the 3 pods take their ranks from it."),
        ("completionMode: Indexed", "completionMode: Foo", ("10:19: spec.completionMode: 'Foo' is not known: it must be one of "
         "Indexed, NonIndexed.")),
        ("---\n", "---\napiVersion: batch/v1\nkind: Job\n---\n", ("one object of kind Job is expected, but there are 2: split the "
         "file.")),
    ],
)  # fmt: skip
def test_what_an_indexed_job_needs(old: str, new: str, text: str) -> None:
    assert refused(INDEXED, old, new).removeprefix("job.yml:").strip() == text


def test_requests_and_limits() -> None:
    asked = "resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {cpu: 2, memory: 2e}}"
    with pytest.raises(JobError, match="memory: '2e' is not a quantity"):
        read(INDEXED.replace("image: train,", f"image: train, {asked},"))
    spec = read(INDEXED.replace("image: train,", f"image: train, {asked.replace('2e', '2Gi')},"))
    assert spec.replicas[0].resources == Resources(Bounds(0.5, 2), Bounds(2**30, 2**31))
    with pytest.raises(JobError) as error:
        read(INDEXED.replace("image: train,", f"image: train, {asked.replace('2e', '1')},"))
    assert str(error.value) == (
        "job.yml:15:55: spec.template.spec.containers.0.resources: request 1.07374e+09 is above limit 1: raise the limit or "
        "lower the request."
    )
