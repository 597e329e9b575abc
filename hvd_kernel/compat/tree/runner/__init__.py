"""``horovod.runner``: what starts ranks. ``run``, which calls a function on them, comes from ``compat.names``."""
