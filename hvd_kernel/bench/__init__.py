"""Benchmark of collectives, ours beside those of others: ``python -m hvd_kernel.bench --help``.

Terms.
  contender  an implementation of allreduce, ours or another's
  sample     the mean time of some calls in a row, of the slowest rank
  round      every contender takes one sample of every size, in an order that turns from round to round
"""
