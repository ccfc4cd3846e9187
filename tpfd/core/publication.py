"""Which step of putting an output object in place comes next.

Theory of operation
-------------------
The object must appear whole or not at all, once, whoever wakes up late. Two things together guarantee that:

* The **prepared record** is written under the fence, so only the owner of the newest fence can write it, and only
  what was prepared is ever placed.
* The **temporary** is the fence of the storage. Its name carries the fence of its owner, and placing consumes it. A
  new owner first discards the temporaries of older fences and only then looks at the key. So an old owner has either
  placed its object before that look (then it is found, with the digest that was prepared, and adopted) or can never
  place it any more, not even where an existing object may be replaced.

An owner therefore goes: claim; discard temporaries of other fences; inspect the key; ask `next_step`; obey; inspect
the key again; ask again; until the answer is `Complete` or `Occupied`. Every question is answered from what is there
now, so that the sequence can be cut anywhere and taken up by anybody.

====================  ==============  ===========  ==================================================
prepared for the key  object there    staged       next
====================  ==============  ===========  ==================================================
completed             any             any          `Complete`: a consumer may have taken it already
yes                   as prepared     any          `Complete`: adopted, nothing is run again
any                   any             no           `Write`
by this temporary     none            yes          `Place` (same temporary and digest)
no, or by another     none            yes          `Prepare`
by this temporary     same as staged  yes          `Complete`
no, or by another     same as staged  yes          `Prepare`
any                   another         yes, FAIL    `Occupied`
by this temporary     another         yes, REPLACE `Place` with ``replace``
no, or by another     another         yes, REPLACE `Prepare`
any                   another         yes, VERSION `NextVersion`
====================  ==============  ===========  ==================================================
"""

from __future__ import annotations

from enum import StrEnum

from attrs import frozen

from tpfd.core.records import Publication, PublicationState


class OnExisting(StrEnum):
    """What to do when another object stands at the key."""

    FAIL = "fail"
    REPLACE = "replace"
    VERSION = "version"


@frozen(kw_only=True)
class Staged:
    """A whole, flushed temporary object, ready to be placed."""

    temporary: str  # name at the target; carries execution and fence
    digest: str  # sha256 of the bytes, hex
    size_bytes: int
    item_count: int


@frozen
class Write:
    """Nothing usable is staged: stream the items into a temporary of this fence."""


@frozen
class Prepare:
    """Record the staged object as the publication, in a transaction under the fence."""


@frozen
class Place:
    """Put the staged object at its key."""

    replace: bool  # True: over the object that was found there; False: refuse to replace anything


@frozen
class Complete:
    """The prepared object is in place: record it completed and the execution succeeded."""


@frozen
class NextVersion:
    """The key is taken: ask again with the next versioned key."""


@frozen
class Occupied:
    """Another object stands at the key and must stay: the execution fails, not retryable."""

    message: str


PublicationStep = Write | Prepare | Place | Complete | NextVersion | Occupied


def next_step(
    *, key: str, prepared: Publication | None, found_digest: str | None, staged: Staged | None, on_existing: OnExisting
) -> PublicationStep:
    """Decides how a publication goes on.

    Args:
        key: where the object shall stand: the prepared record's key if there is one, else the freshly rendered one,
            or the next version of either.
        prepared: the execution's publication record; None if none was written yet.
        found_digest: sha256 hex of the object that stands at `key` now; None if there is none.
        staged: this owner's own staged object; None if it has none.
        on_existing: what to do about another object at the key.

    Returns:
        The next step. All but `Complete` and `Occupied` are followed by another inspection and another question.
    """
    recorded = prepared if prepared is not None and prepared.object_key == key else None
    if recorded is not None and (recorded.state is PublicationState.COMPLETED or recorded.digest == found_digest):
        return Complete()
    if staged is None:
        return Write()
    foreign = found_digest is not None and found_digest != staged.digest
    if foreign and on_existing is OnExisting.FAIL:
        return Occupied(
            f"another object stands at {key!r} (sha256 {found_digest}, ours is {staged.digest}): move it away and "
            f"re-drive, or set onExisting to replace or version"
        )
    if foreign and on_existing is OnExisting.VERSION:
        return NextVersion()
    if recorded is None or (recorded.temporary, recorded.digest) != (staged.temporary, staged.digest):
        return Prepare()
    return Place(replace=foreign)
