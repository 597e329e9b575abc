"""Environments of other frameworks: a checkout's own has links to what was downloaded for all of them."""

from __future__ import annotations

from pathlib import Path

from hvdtest import environments


def test_programs_and_libraries_are_found_beside_a_checkouts_python(tmp_path: Path) -> None:
    downloaded, own = tmp_path / "downloaded", tmp_path / "own"
    for path in ("bin/python", "bin/mpiexec", "lib/libmpi.so", "lib/python3.11/site.py", "share/openmpi/help.txt"):
        for root in (downloaded, own) if "python" in path else (downloaded,):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(f"{root.name}'s")
    environments._link_beside(downloaded, own)
    found = {str(path.relative_to(own)): path.read_text() for path in own.rglob("*") if path.is_file()}
    assert found["bin/python"] == found["lib/python3.11/site.py"] == "own's"
    assert found["bin/mpiexec"] == found["lib/libmpi.so"] == "downloaded's"
    assert (own / "share" / "openmpi" / "help.txt").read_text() == "downloaded's"
