"""Ranks that a cluster's engine (Ray, Spark, Kubernetes) has started: each is held by an agent that calls back."""
