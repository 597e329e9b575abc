"""A torch that cannot be imported: found through PYTHONPATH, before the real one."""

raise ImportError("this torch is broken")
