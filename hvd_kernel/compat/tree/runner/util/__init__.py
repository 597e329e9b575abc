"""``horovod.runner.util``: addresses, threads, and commands for other hosts."""
