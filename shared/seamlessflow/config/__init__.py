"""Settings of services and nodes, and the run file."""
