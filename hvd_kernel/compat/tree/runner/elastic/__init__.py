"""``horovod.runner.elastic``: only ``worker``, which tells states that hosts have changed."""
