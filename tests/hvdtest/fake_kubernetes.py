"""A fake Kubernetes API server: it validates objects against their schemas, and runs a job's pods as local processes.

What it has of a cluster: Jobs of the kind Indexed, Secrets as files of their pods, a list of pods, refusals in the
server's own words. It has no scheduler, no images, no network of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped,unused-ignore]

SCHEMAS = Path(__file__).parents[1] / "platforms" / "data" / "schemas" / "kubernetes-1.37.json"
KINDS = {"Job": "io.k8s.api.batch.v1.Job", "Secret": "io.k8s.api.core.v1.Secret"}
TOKEN = "account-token"


@cache
def _validator(definition: str) -> Any:
    schema = json.loads(SCHEMAS.read_text())
    return jsonschema.Draft202012Validator({"$defs": schema["$defs"], "$ref": f"#/$defs/{definition}"})


class Cluster:
    """The objects, and the processes of pods, by index."""

    def __init__(self, folder: Path, room: int) -> None:
        self.folder, self.room = folder, room
        self.jobs: dict[str, dict[str, Any]] = {}
        self.secrets: dict[str, dict[str, Any]] = {}
        self.pods: dict[int, subprocess.Popen[bytes]] = {}
        self.deleted: list[str] = []
        self.server = ""
        self.account = folder / "account"

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        _validator(KINDS[body["kind"]]).validate(body)
        name = body["metadata"]["name"]
        made = body | {"metadata": body["metadata"] | {"uid": f"uid-of-{name}"}}
        (self.jobs if body["kind"] == "Job" else self.secrets)[name] = made
        if name in self.jobs and name in self.secrets and not self.pods:
            self._run(self.jobs[name]["spec"], self.secrets[name])
        return made

    def _run(self, spec: dict[str, Any], secret: dict[str, Any]) -> None:
        mounted = self.folder / "mounted"
        mounted.mkdir()
        for name, text in secret["stringData"].items():
            (mounted / name).write_text(text)
        [container] = spec["template"]["spec"]["containers"]
        [mount] = container["volumeMounts"]
        assert container["command"][0] == "python"
        words = [sys.executable, *container["command"][1:]]
        words += [word.replace(mount["mountPath"], str(mounted)) for word in container["args"]]
        for index in range(min(self.room, spec["parallelism"])):
            env = os.environ | {"JOB_COMPLETION_INDEX": str(index), "HVD_HOST": f"pod-{index}"}
            self.pods[index] = subprocess.Popen(words, env=env)

    def status(self, name: str) -> dict[str, Any]:
        ended = [pod.poll() for pod in self.pods.values()]
        done = len(ended) == self.jobs[name]["spec"]["completions"] and all(code == 0 for code in ended)
        return {"conditions": [{"type": "Complete", "status": "True"}] if done else []}

    def listed(self) -> list[dict[str, Any]]:
        running = [{"status": {"phase": "Running"}} for _ in self.pods]
        message = "0/1 nodes are available: 1 Insufficient cpu."
        lacking = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        return [*running, {"status": {"phase": "Pending", "conditions": [lacking]}}]

    def delete(self, name: str) -> None:
        if self.jobs.pop(name, None) is not None:
            self.deleted.append(name)
            self.secrets.pop(name, None)
        for pod in self.pods.values():
            pod.send_signal(signal.SIGTERM)


@contextmanager
def cluster(folder: Path, *, room: int = 99, may_create: bool = True) -> Iterator[Cluster]:
    """Start a cluster with room for some pods and an account that may create jobs."""
    made = Cluster(folder, room)
    made.account.mkdir()
    (made.account / "token").write_text(TOKEN)
    (made.account / "namespace").write_text("lab")

    class Handler(BaseHTTPRequestHandler):
        def _say(self, code: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _read(self) -> dict[str, Any]:
            body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            return body

        def do_POST(self) -> None:
            body = self._read()
            if body["kind"] == "SelfSubjectAccessReview":
                allowed = may_create or body["spec"]["resourceAttributes"]["verb"] != "create"
                self._say(201, body | {"status": {"allowed": allowed}})
            elif self.headers["Authorization"] != f"Bearer {TOKEN}" or not may_create:
                who = 'jobs.batch is forbidden: User "system:serviceaccount:lab:default" cannot create resource "jobs"'
                self._say(403, {"kind": "Status", "message": who})
            else:
                self._say(201, made.create(body))

        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            if "/pods?" in self.path:
                self._say(200, {"items": made.listed()})
            elif name in made.jobs:
                self._say(200, made.jobs[name] | {"status": made.status(name)})
            else:
                self._say(404, {"kind": "Status", "message": f'jobs.batch "{name}" not found'})

        def do_DELETE(self) -> None:
            self._read()
            made.delete(self.path.rpartition("/")[2])
            self._say(200, {"kind": "Status", "status": "Success"})

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made.server = f"http://127.0.0.1:{server.server_port}"
        try:
            yield made
        finally:
            server.shutdown()
            for pod in made.pods.values():
                pod.kill()
                pod.wait()
