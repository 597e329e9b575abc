"""``horovod.runner.common``: what its launchers share."""
