"""The command line: `main` finds the command, one module per family does the work."""
