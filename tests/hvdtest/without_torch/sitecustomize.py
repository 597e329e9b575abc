"""A Python without torch: found through PYTHONPATH, by ranks and by their child processes."""

import sys

sys.modules["torch"] = None  # type: ignore[assignment]  # importlib.util.find_spec finds none, an import fails
