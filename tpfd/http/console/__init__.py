"""The web page for people."""
