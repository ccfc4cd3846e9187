"""The example pipelines that come with tpfd, so that it can be tried right after install."""

from __future__ import annotations

from importlib import resources

from tpfd.errors import NotFound

_PACKAGES = {
    "csv-payments": "csv_payments",
    "restaurant-approval": "restaurant_approval",
    "deliver-order": "deliver_order",
}


def names() -> tuple[str, ...]:
    """Names of the examples, as in ``example:csv-payments``."""
    return tuple(_PACKAGES)


def pipeline_text(name: str) -> str:
    """Reads the ``pipeline.yaml`` of an example.

    Args:
        name: one of `names`.

    Raises:
        NotFound: ``example_unknown``; the message lists the names.
    """
    package = _PACKAGES.get(name)
    if package is None:
        raise NotFound(f"there is no example {name!r}; there are {', '.join(_PACKAGES)}", code="example_unknown")
    return resources.files(__name__).joinpath(package, "pipeline.yaml").read_text(encoding="utf-8")
