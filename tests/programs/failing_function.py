"""A function that raises on rank 1, for ranks of Ray and of Spark."""


class Bad(Exception):
    pass


def fails():
    import hvd_kernel.numpy as hvd

    hvd.init()
    if hvd.rank() == 1:
        raise Bad("shard", 1)
    hvd.barrier()
