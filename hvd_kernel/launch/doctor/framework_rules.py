"""Uses of frameworks' APIs that current versions no longer have: one table of names, one of keyword arguments.

Scripts for Horovod often date from TensorFlow 1, Keras 2 or Lightning 1. They fail at their start with the versions
that hvd_kernel supports, whatever launches them.
Sources: TensorFlow's guide "Migrate to TensorFlow 2"; Keras' "Migrating Keras 2 code to Keras 3"; Lightning's upgrade
guide 1.9 to 2.0; NumPy's release notes 1.24.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hvd_kernel.launch.doctor.finding import Finding, Verdict, short

GONE = "{package} {version} and newer do not have it"
"""Detail of a finding about an API."""
LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
"""Variable with which TensorFlow uses Keras 2, from the package tf_keras."""
LEGACY = f"or set {LEGACY_KERAS}=1 and install tf_keras"
NEEDS_PROJECT, NEEDS_KERAS_3 = "project", "keras 3"
"""Values of ``Finding.needs``: the finding counts in a project that uses Horovod, and in one without Keras 2."""


class Rule(NamedTuple):
    """An API: its package, the first version without it, and what to write. ``legacy``: Keras 2 has it."""

    package: str
    version: str
    remedy: str
    legacy: bool = False


def _tf1(*names: str) -> dict[str, Rule]:
    return {f"tensorflow.{name}": Rule("TensorFlow", "2.0", f"write tf.compat.v1.{name}") for name in names}


def _tf(version: str, remedy: str, *names: str) -> dict[str, Rule]:
    return {f"tensorflow.{name}": Rule("TensorFlow", version, remedy) for name in names}


_KERAS_3 = "3 (TensorFlow 2.16)"

APIS: dict[str, Rule] = {
    **_tf1("ConfigProto", "GPUOptions", "Session", "InteractiveSession", "placeholder", "placeholder_with_default"),
    **_tf1("variable_scope", "get_variable", "global_variables_initializer", "local_variables_initializer"),
    **_tf1("trainable_variables", "global_variables", "get_default_graph", "reset_default_graph", "set_random_seed"),
    **_tf1("random_normal", "random_uniform", "truncated_normal", "to_float", "to_int32", "to_int64", "log", "div"),
    **_tf1("enable_eager_execution", "disable_eager_execution", "assign", "app", "flags", "logging", "gfile"),
    **_tf1("python_io", "summary.FileWriter", "summary.merge_all", "losses.softmax_cross_entropy"),
    **_tf1("losses.sparse_softmax_cross_entropy", "losses.mean_squared_error", "train.AdamOptimizer"),
    **_tf1("train.GradientDescentOptimizer", "train.MomentumOptimizer", "train.RMSPropOptimizer"),
    **_tf1("train.AdagradOptimizer", "train.AdadeltaOptimizer", "train.FtrlOptimizer", "train.Saver"),
    **_tf1("train.get_or_create_global_step", "train.get_global_step", "train.MonitoredTrainingSession"),
    **_tf1("train.SessionRunHook", "train.StopAtStepHook", "train.LoggingTensorHook", "train.NanTensorHook"),
    **_tf("2.0", "it has no successor: use Keras, or TF-Slim", "contrib"),
    **_tf("2.0", f"write tf.keras.layers; tf.compat.v1.layers needs {LEGACY_KERAS}=1 and tf_keras", "layers"),
    **_tf("2.16", "train with tf.keras, or stay with TensorFlow 2.15", "estimator", "compat.v1.estimator"),
    "tensorflow.compat.v1.layers": Rule("Keras", _KERAS_3, f"write tf.keras.layers, {LEGACY}", legacy=True),
    "keras.backend.set_session": Rule("TensorFlow", "2.0", "use tf.config.experimental.set_memory_growth"),
    "keras.backend.get_session": Rule("TensorFlow", "2.0", "leave it out"),
    "keras.backend.tensorflow_backend": Rule("Keras", "2.4", "write keras.backend"),
    "keras.utils.multi_gpu_model": Rule("Keras", "2.4", "use a process per GPU"),
    "keras.utils.np_utils": Rule("Keras", _KERAS_3, "write keras.utils"),
    "keras.mixed_precision.experimental": Rule("Keras", _KERAS_3, "write keras.mixed_precision"),
    "keras.optimizers.legacy": Rule("Keras", _KERAS_3, f"write keras.optimizers, {LEGACY}", legacy=True),
    "lightning.metrics": Rule("Lightning", "2.0", "install torchmetrics, and import it"),
    "lightning.plugins.HorovodPlugin": Rule("Lightning", "2.0", "write Trainer(strategy=HorovodStrategy())"),
    **{f"numpy.{name}": Rule("NumPy", "1.24", f"write {name}") for name in ("int", "float", "object", "complex")},
    "torch._six": Rule("torch", "2.0", "write str, bytes, collections.abc"),
}
"""Dotted name -> its rule; keras stands for tensorflow.keras, lightning for pytorch_lightning and lightning.pytorch."""

_OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adamax", "Adadelta", "Adagrad", "Nadam", "RMSprop", "Ftrl")
_TRAINER = {
    "gpus": 'write accelerator="gpu", devices=N',
    "tpu_cores": 'write accelerator="tpu", devices=N',
    "auto_select_gpus": "leave it out",
    "distributed_backend": "write strategy=",
    "resume_from_checkpoint": "write trainer.fit(model, ckpt_path=...)",
    "checkpoint_callback": "write enable_checkpointing=",
    "progress_bar_refresh_rate": "write callbacks=[TQDMProgressBar(refresh_rate=N)]",
    "weights_summary": "write enable_model_summary=",
    "terminate_on_nan": "write detect_anomaly=",
    "replace_sampler_ddp": "write use_distributed_sampler=",
}
KEYWORDS: dict[tuple[str, str], Rule] = {
    ("compile", "experimental_run_tf_function"): Rule("Keras", _KERAS_3, f"leave it out, {LEGACY}", legacy=True),
    **{
        (f"keras.optimizers.{name}", "lr"): Rule("Keras", _KERAS_3, f"write learning_rate=, {LEGACY}", legacy=True)
        for name in _OPTIMIZERS
    },
    **{
        (f"keras.optimizers.{name}", "decay"): Rule("Keras", "2.11", "write a schedule as learning_rate")
        for name in _OPTIMIZERS
    },
    **{("lightning.Trainer", name): Rule("Lightning", "2.0", remedy) for name, remedy in _TRAINER.items()},
}
"""(Dotted name of what is called, or a method's name, keyword argument) -> its rule."""
_METHODS: dict[str, Rule] = {
    name: Rule("Keras", _KERAS_3, f"write {new}, {LEGACY}", legacy=True)
    for name, new in {
        "fit_generator": "fit",
        "evaluate_generator": "evaluate",
        "predict_generator": "predict",
    }.items()
}
_EPOCH_ENDS = ("training_epoch_end", "validation_epoch_end", "test_epoch_end")
_ENDED = Rule("Lightning", "2.0", "write on_train_epoch_end(self) and keep the outputs in an attribute")
_VARIABLES = Rule("Keras", _KERAS_3, f"write .variables, {LEGACY}", legacy=True)
_OPTIMIZER_NAMES = {"opt", "optimizer"}
_CAUGHT = ("AttributeError", "ImportError", "ModuleNotFoundError")
_CHECKS = ("version", "hasattr", "tf2", "tf1")
_PACKAGES = {"tensorflow": "TensorFlow", "keras": "Keras", "lightning": "Lightning"}
_SPELLINGS = (
    ("tensorflow.keras", "keras"),
    ("tf_keras", "tf_keras"),
    ("tensorflow.python.keras", "keras"),
    ("pytorch_lightning", "lightning"),
    ("lightning.pytorch", "lightning"),
)


def findings(nodes: Sequence[ast.AST], file: str) -> Iterator[Finding]:
    """Yield a finding for each use of an API that current versions do not have."""
    names = dict(pair for node in nodes for pair in _imports(node))
    roots = {path.partition(".")[0] for path in names.values()}
    guarded = {line for node in nodes for line in _guarded_lines(node)}
    for node in nodes:
        yield from (finding for finding in _of_node(node, names, roots, file) if finding.line not in guarded)


def _of_node(node: ast.AST, names: dict[str, str], roots: set[str], file: str) -> Iterator[Finding]:
    for path, rule, line in (*_imported(node), *_used(node, names)):
        yield _finding(path, rule, file, line)
    if isinstance(node, ast.Call):
        yield from _calls(node, names, roots, file)
    elif isinstance(node, ast.FunctionDef) and node.name in _EPOCH_ENDS and "lightning" in roots:
        yield _finding(f"def {node.name}", _ENDED, file, node.lineno)


def _guarded_lines(node: ast.AST) -> Iterator[int]:
    """Yield the lines that run with some versions only: behind a check of the version, or where an error is caught."""
    if not isinstance(node, (ast.Try, ast.If)):
        return
    if isinstance(node, ast.Try):
        caught = " ".join(ast.unparse(handler.type) for handler in node.handlers if handler.type is not None)
        is_guard = any(name in caught for name in _CAUGHT)
    else:
        is_guard = any(word in ast.unparse(node.test).lower() for word in _CHECKS)
    if is_guard:
        yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _finding(subject: str, rule: Rule, file: str, line: int) -> Finding:
    detail = GONE.format(package=rule.package, version=rule.version)
    needs = NEEDS_KERAS_3 if rule.legacy else NEEDS_PROJECT
    return Finding(file, line, short(subject), Verdict.LINE, detail, rule.remedy, needs)


def _canonical(path: str) -> str:
    for spelling, name in _SPELLINGS:
        if path == spelling or path.startswith(f"{spelling}."):
            return name + path[len(spelling) :]
    return path


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield local names with the dotted names that they stand for."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield (alias.asname, _canonical(alias.name)) if alias.asname else (alias.name.partition(".")[0],) * 2
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            yield alias.asname or alias.name, _canonical(f"{node.module}.{alias.name}")


def _imported(node: ast.AST) -> Iterator[tuple[str, Rule, int]]:
    """Yield the APIs that an import names, with their lines."""
    paths: list[str] = []
    if isinstance(node, ast.Import):
        paths = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        paths = [f"{node.module}.{alias.name}" for alias in node.names]
    for path in paths:
        parts = _canonical(path).split(".")
        prefixes = (".".join(parts[:length]) for length in range(2, len(parts) + 1))
        rule = next((APIS[prefix] for prefix in prefixes if prefix in APIS), None)
        if rule is not None and isinstance(node, (ast.Import, ast.ImportFrom)):
            yield f"import {path}", rule, node.lineno


def _path(node: ast.expr, names: dict[str, str]) -> tuple[str, str]:
    """Return an expression as it is written, ``tf.ConfigProto``, and its dotted name; empty if it is not imported."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return "", ""
    return ".".join([node.id, *reversed(parts)]), _canonical(".".join([names[node.id], *reversed(parts)]))


def _used(node: ast.AST, names: dict[str, str]) -> Iterator[tuple[str, Rule, int]]:
    """Yield the API that an expression names, such as ``tf.ConfigProto``, with its line."""
    if isinstance(node, ast.Attribute):
        written, path = _path(node, names)
        if path in APIS:
            yield written, APIS[path], node.lineno


def _calls(node: ast.Call, names: dict[str, str], roots: set[str], file: str) -> Iterator[Finding]:
    """Yield the findings on a call's method and keyword arguments, in a file that imports the framework."""
    written, path = _path(node.func, names)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    for keyword in node.keywords:
        rule = KEYWORDS.get((path or method, keyword.arg or ""))
        if rule is not None and _is_imported(rule, roots):
            yield _finding(f"{written or method}({keyword.arg}=...)", rule, file, keyword.value.lineno)
    if not isinstance(node.func, ast.Attribute) or not _is_imported(_VARIABLES, roots):
        return
    receiver = node.func.value
    receiver_name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    if method in _METHODS:
        yield _finding(f"{method}()", _METHODS[method], file, node.lineno)
    elif method == "variables" and not node.args and receiver_name in _OPTIMIZER_NAMES:
        yield _finding(f"{receiver_name}.variables()", _VARIABLES, file, node.lineno)


def _is_imported(rule: Rule, roots: set[str]) -> bool:
    frameworks = {root for root, package in _PACKAGES.items() if package == rule.package}
    return bool((frameworks | ({"tensorflow"} if rule.package == "Keras" else set())) & roots)
