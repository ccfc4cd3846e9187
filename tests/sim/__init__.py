"""The simulation: a whole cluster in one process, on virtual time, driven by one seed."""
