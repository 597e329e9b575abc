"""Framework adapters: what the rest of the package knows of torch, TensorFlow and the others, each behind one class."""
