"""Scripts on many ranks: the command ``hvdrun`` and ``launch``, its function. Controller side: no torch, no MPI."""
