"""Benchmark of allreduce against other implementations: ``python -m hvd_kernel.bench --help``.

Terms.
  contender  an implementation of allreduce, ours or another
  sample     the mean time of consecutive calls, on the slowest rank
  round      one sample of every contender, in an order that rotates from round to round
"""
