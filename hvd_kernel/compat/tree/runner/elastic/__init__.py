"""``horovod.runner.elastic``: who says which hosts there are, and ``worker``, which tells states of changes."""
