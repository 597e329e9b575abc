"""Words behind %hvd on the machine: what its ranks can exchange, what fills its memory."""
