"""Host discovery of elastic jobs: a script, a file, an object, Slurm or Kubernetes returns the available hosts."""
