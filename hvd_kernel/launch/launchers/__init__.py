"""Launchers: how the agents of a job are started, by ssh, srun or MPI."""
