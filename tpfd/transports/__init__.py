"""Roads on which await requests leave and answers come back."""
