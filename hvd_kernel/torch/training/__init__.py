"""Distributed training in torch: reduction of gradients, buckets, wrapped optimizers."""
