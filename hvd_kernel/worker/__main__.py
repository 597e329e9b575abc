"""Entry of a rank: ``python -P -m hvd_kernel.worker``, started by mpiexec."""

from hvd_kernel.worker import life

if __name__ == "__main__":
    life.tie_to_parent()  # before anything slow: from here on this process ends with mpiexec
    life.share_cores()
    from hvd_kernel.worker import bootstrap

    bootstrap.main()
