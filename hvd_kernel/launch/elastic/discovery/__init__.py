"""Host discovery of elastic jobs: a script, a file, an object, Slurm or Kubernetes says which hosts there are."""
