"""The rank side below every frontend: session, topology, tensors, collectives, process sets, shared memory."""
