"""Settings of all tests of these folders: generated examples of the tier."""

from __future__ import annotations

import hvdtest.examples  # noqa: F401 - it loads the profile
