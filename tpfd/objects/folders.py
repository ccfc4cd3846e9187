"""Opening files below a root without ever following a link.

Every path is walked part by part from an open descriptor of the root with ``O_NOFOLLOW``, so there is no moment between
a check and its use in which a link could be slipped in. The root itself may be a link: the operator named it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tpfd.errors import NonRetryableError, OutsideError

_PERMANENT = frozenset({errno.ENAMETOOLONG, errno.EXDEV, errno.EISDIR, errno.ENOTDIR, errno.EOPNOTSUPP, errno.EPERM})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO would otherwise wait for a writer that may never come.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def reporting(doing: str) -> Iterator[None]:
    """Turns errors of the operating system (full disk, permissions, I/O …) into ours.

    Args:
        doing: what is tried, with the path, as ``writing /out/x.csv``.

    Raises:
        OutsideError: ``object_storage_failed``; retryable unless the same call can never succeed.
    """
    try:
        yield
    except OSError as error:
        raise OutsideError(
            f"{doing}: {error.strerror or error}",
            retryable=error.errno not in _PERMANENT,
            code="object_storage_failed",
        ) from error


@contextmanager
def open_root(root: Path) -> Iterator[int]:
    """Opens a location's folder; gives its descriptor.

    Raises:
        OutsideError: it is not there. It is never made: an unmounted disk must not be mistaken for an empty one.
    """
    with reporting(f"opening folder {root}, which must exist"):
        descriptor = os.open(root, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_parent(root: int, key: str, *, create: bool) -> Iterator[tuple[int, str]]:
    """Opens the folder in which a checked key stands.

    Args:
        root: descriptor of the root.
        key: a key without problems.
        create: make missing folders, durably.

    Yields:
        The folder's descriptor and the key's last part.

    Raises:
        NonRetryableError: a part is a symbolic link or a file.
        FileNotFoundError: a folder is missing and `create` is False.
    """
    *folders, name = key.split("/")
    descriptor = os.dup(root)
    try:
        for part in folders:
            below = _open_folder(descriptor, part, key, create=create)
            os.close(descriptor)
            descriptor = below
        yield descriptor, name
    finally:
        os.close(descriptor)


def _open_folder(above: int, part: str, key: str, *, create: bool) -> int:
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
    except FileNotFoundError:
        if not create:
            raise
    except NotADirectoryError as error:  # also what O_NOFOLLOW with O_DIRECTORY says about a link
        raise NonRetryableError(
            f"object key {key!r}: {part!r} is a link or a file, not a folder", code="object_key_refused"
        ) from error
    try:
        os.mkdir(part, dir_fd=above)
    except FileExistsError:
        pass  # another attempt made it at the same moment, which is as good
    else:
        os.fsync(above)
    return _open_folder(above, part, key, create=False)


def open_file(folder: int, name: str, key: str) -> int:
    """Opens a regular file for reading; gives its descriptor.

    Raises:
        FileNotFoundError: it is not there.
        NonRetryableError: it is a link, a folder, a device …
    """
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link; a socket or a FIFO without its other end
            raise _not_a_file(key) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_file(key)
    return descriptor


def _not_a_file(key: str) -> NonRetryableError:
    return NonRetryableError(f"object key {key!r}: what stands there is not a regular file", code="object_key_refused")
