"""Where dead letters and rejected items go."""
