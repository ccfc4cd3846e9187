"""tpfd: the durable pipeline daemon for Python."""

__version__ = "0.1.0"
