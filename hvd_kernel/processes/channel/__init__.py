"""Control channel between an agent and its controller: connection, authentication, messages."""
