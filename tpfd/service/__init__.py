"""What the daemon offers to its edge: submit, look, complete, re-drive."""
