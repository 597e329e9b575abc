"""Private MPS daemon of the ranks that share a device."""
