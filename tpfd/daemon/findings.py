"""What a look at something found: the lines of ``tpfd check --connect`` and ``tpfd doctor``, and of a refused start."""

from __future__ import annotations

from attrs import frozen


@frozen
class Finding:
    """One thing that was looked at.

    Attributes:
        about: what, for a person: ``oldest due execution``, ``table tpf_execution``.
        said: how it is.
        advice: what to do; empty where it is in order.
        path: the configuration key that names it, as ``$.store.provider``; empty where none does.
    """

    about: str
    said: str
    advice: str = ""
    path: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is nothing to do."""
        return not self.advice
