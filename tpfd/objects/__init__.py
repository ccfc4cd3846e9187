"""Objects: files and their like, taken in as input and put out as whole output."""
