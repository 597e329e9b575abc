"""hvd_kernel.run: a function on many ranks."""
