"""The kernels and clusters that tests share: see hvdtest/sharing.py."""

from hvdtest.sharing import (  # noqa: F401 - fixtures and hooks are found by their names
    kernel,
    no_spare,
    own,
    pytest_collection_modifyitems,
    pytest_runtest_makereport,
    pytest_runtest_teardown,
    session,
)
