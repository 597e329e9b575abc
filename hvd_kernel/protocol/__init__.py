"""Messages and serialization between the controller side and the rank side."""
