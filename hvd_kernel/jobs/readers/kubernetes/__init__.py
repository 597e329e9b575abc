"""Kubernetes objects that start ranks: Indexed Job, MPIJob of Kubeflow's MPI Operator, TrainJob of its Trainer."""
