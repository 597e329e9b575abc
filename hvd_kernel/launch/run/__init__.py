"""``hvd_kernel.run``: calls of a function on many ranks."""
