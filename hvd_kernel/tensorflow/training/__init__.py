"""Training with TensorFlow: gradients that are reduced over all ranks, by tapes and by TensorFlow 1's optimizers."""
