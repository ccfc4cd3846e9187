"""Where dead letters and rejected items go, and how hosts tell each other of work."""
