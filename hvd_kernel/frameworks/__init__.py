"""Framework adapters: one class per framework, through which the rest of the package uses it."""
