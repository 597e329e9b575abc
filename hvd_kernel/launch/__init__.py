"""Scripts on many ranks: the command ``hvdrun`` and ``launch``, its function. Controller world: no torch, no MPI."""
