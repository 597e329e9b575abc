"""Standard error of an agent, or of the ssh that runs it: its end comes with the channel's, and says whether its host was silent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hvd_kernel.launch.agents import Agents, SpawnedAgent
from hvd_kernel.launch.placement import Host

SSH = """#!/bin/sh
read -r line
echo 'Timeout, server far not responding.' >&2
"""


def test_last_output_of_ssh_is_read_after_the_channel_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin")
    agents = Agents()
    agent = SpawnedAgent(agents, Host("far", 1), None, None, "")
    agent.channel.end_sending()
    agent._process.wait()
    assert agent.output == "", "nothing has been read"
    assert agent.stderr_tail() == "Timeout, server far not responding.\n"
    assert agent.stderr_tail() == "Timeout, server far not responding.\n"
    agents.end()
