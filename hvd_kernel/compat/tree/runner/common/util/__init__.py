"""``horovod.runner.common.util``: hosts, settings, timeouts, secrets, and commands of a shell."""
