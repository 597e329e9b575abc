"""Engine as a notebook's cluster uses it (cluster/by_engine/engine.py): it brings the agents, and lives with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hvd_kernel.launch.launchers.cluster_engine import Engine, EngineRun, Invitation

_LET_GO_S = 10.0  # that the engine may take to notice that the ranks are over


class NotebookEngine:
    """One use of an engine.

    Parameters
    ----------
    engine
        Has not been started.
    env
        Variables that ranks get besides those of the engine's processes.
    """

    def __init__(self, engine: Engine, env: Mapping[str, str]) -> None:
        self.name: str = engine.name
        self.addresses: Sequence[str] = engine.addresses
        self._engine, self._env = engine, dict(env)
        self._run: EngineRun | None = None

    def begin(self, address: str, secret: str, on_end: Callable[[str], None]) -> None:
        """Have the processes started, which call there; ``on_end`` is told, in a thread, why no more will come."""

        def ended(error: BaseException | None) -> None:
            on_end("" if error is None else self._engine.explain(error))

        self._run = EngineRun(self._engine, Invitation(address, secret, self._env, self._engine.hidden), ended)

    def shortage(self) -> str:
        """Say what the engine has for the ranks at this moment, as a sentence; empty: it does not tell."""
        return self._engine.shortage()

    def end(self, *, at_once: bool) -> None:
        """Wait for the engine's end, and cancel what has not ended after a time, or at once. Idempotent."""
        run, self._run = self._run, None
        if run is not None:
            if not at_once:
                run.up()
            run.close(_LET_GO_S)
