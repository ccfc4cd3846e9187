"""Output objects in an S3 bucket.

The temporary of an attempt is a multipart upload to the key itself: its parts are invisible, completing it is what
makes the object appear, whole and at once, and consumes it. That is the fence of the storage: a new owner first aborts
the uploads of older fences, and what is aborted can never be completed. A single put could not be called back so; small
objects are therefore uploads, too, of one part.

What uploads an execution has is found by **markers**: small objects ``.tpfd/<execution id>/<fence>.<token>`` that hold
key and upload id, written before the first part. (A listing of the uploads themselves would not say whose they are.) An
upload whose process died before its marker was written has no parts and costs nothing; one whose execution never runs
again is left to the bucket's rule for incomplete uploads.

Objects carry the name of their marker as metadata: after a lost answer their owner knows them again. Those that fit
into one part carry their digest, too, and are adopted without being read.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from tpfd.aws.failures import TRANSIENT, AwsFailure, Failure
from tpfd.core.publication import Staged
from tpfd.errors import Conflict, InternalError, NonRetryableError, OutsideError
from tpfd.objects.formats import Encoder
from tpfd.objects.keys import check_key
from tpfd.objects.protocol import FoundObject, PlaceOutcome, Temporary
from tpfd.objects.s3_bucket import Bucket, reporting
from tpfd.objects.s3_upload import Placed, UploadSession, is_gone
from tpfd.ops.logs import get_logger

log = get_logger("tpfd.objects")

MARKERS = ".tpfd"
MARKER = "tpfd-marker"
DIGEST = "tpfd-sha256"
CLEAN_UP_S = 20.0
"""What cannot be cleaned up within this is left to the next owner."""


class S3Target:
    """An `ObjectTarget` below a prefix of a bucket."""

    def __init__(self, bucket: Bucket, *, content_type: str, replaces: bool) -> None:
        """
        Args:
            bucket: the location.
            content_type: of the objects.
            replaces: the pipeline lets its objects replace others, so that nothing is asked of conditional requests.
        """
        self._bucket = bucket
        self._content_type = content_type
        self._replaces = replaces
        self._conditions_hold = replaces  # known once it was tried
        self._sessions: dict[str, UploadSession] = {}

    @asynccontextmanager
    async def open_temporary(
        self, key: str, execution_id: str, fence: int, encoder: Encoder
    ) -> AsyncIterator[UploadSession]:
        marker = f"{MARKERS}/{execution_id}/{fence}.{secrets.token_hex(8)}"
        check_key(key)
        check_key(marker)
        session = UploadSession(bucket=self._bucket, key=key, temporary=marker, encoder=encoder, begin=self._begin)
        self._sessions[marker] = session
        try:
            yield session
        finally:
            del self._sessions[marker]
            if session.upload_id is not None:
                await self._clean_up(session, session.upload_id)

    async def _begin(self, session: UploadSession, digest: str | None) -> None:
        """Makes upload and marker.

        Raises:
            OutsideError: ``object_storage_failed``.
            NonRetryableError: ``conditional_writes_missing``.
        """
        metadata = {MARKER: session.temporary} | ({} if digest is None else {DIGEST: digest})
        with reporting(f"beginning the upload of {self._bucket.url_of(session.key)}"):
            answer = await self._bucket.request(
                "create_multipart_upload",
                session.key,
                ContentType=self._content_type,
                Metadata=metadata,
                ChecksumAlgorithm="CRC32",
            )
        upload_id: str = answer["UploadId"]
        session.upload_id = upload_id  # from here on it is aborted, whatever comes
        content = json.dumps({"key": session.key, "uploadId": upload_id}).encode()
        is_new = await self._mark(session.temporary, content)
        if not self._conditions_hold:
            # Some services take the condition and do not heed it. The second marker of the same name tells.
            if is_new and await self._mark(session.temporary, content):
                raise NonRetryableError(
                    f"the service of {self._bucket.url} does not heed If-None-Match, so nothing there is safe from "
                    "being replaced: set 'onExisting: replace', or use another service",
                    code="conditional_writes_missing",
                )
            self._conditions_hold = True

    async def _mark(self, marker: str, content: bytes) -> bool:
        """Writes a marker; False: it is there."""
        condition: dict[str, Any] = {} if self._replaces else {"IfNoneMatch": "*"}
        with reporting(f"writing {self._bucket.url_of(marker)}"):
            try:
                await self._bucket.request("put_object", marker, Body=content, **condition)
            except AwsFailure as error:
                if error.failure is Failure.CONDITION:
                    return False
                raise
        return True

    async def place(self, staged: Staged, key: str, *, replace: bool) -> PlaceOutcome:
        check_key(key)
        session = self._sessions.get(staged.temporary)
        if session is None:
            raise InternalError(f"{staged.temporary} is placed outside its session")
        url = self._bucket.url_of(session.key)
        if session.key != key:
            raise OutsideError(
                f"{url} was taken while its object was uploaded; another attempt will upload to {key}",
                code="output_key_taken",
            )
        params: dict[str, Any] = {"UploadId": session.upload_id, "MultipartUpload": {"Parts": session.parts}}
        if not (replace or self._replaces):
            params["IfNoneMatch"] = "*"
        with reporting(f"completing {url}"):
            try:
                # S3 wants what met a conflict to be uploaded anew, which is another attempt's work.
                answer = await self._bucket.request(
                    "complete_multipart_upload", key, retry_on=TRANSIENT - {Failure.CONFLICT}, **params
                )
                etag = answer["ETag"].strip('"')
            except AwsFailure as error:
                if not (is_gone(error) or error.failure is Failure.CONDITION):
                    raise
                # The answer of an earlier try may have been lost: then what stands there is ours.
                head = await self._bucket.head(key)
                if head is None or head.metadata.get(MARKER) != staged.temporary:
                    return PlaceOutcome.SUPERSEDED if is_gone(error) else PlaceOutcome.OCCUPIED
                etag = head.etag
        session.placed = Placed(etag, FoundObject(digest=staged.digest, size_bytes=staged.size_bytes))
        return PlaceOutcome.PLACED

    async def inspect(self, key: str) -> FoundObject | None:
        check_key(key)
        while True:
            head = await self._bucket.head(key)
            if head is None:
                return None
            for session in self._sessions.values():
                if session.key == key and session.placed is not None and session.placed.etag == head.etag:
                    return session.placed.found
            if (digest := head.metadata.get(DIGEST)) is not None:
                return FoundObject(digest=digest, size_bytes=head.size_bytes)
            try:
                digest = await self._bucket.digest(key, head.etag, head.size_bytes)
            except Conflict:
                continue  # replaced or removed while it was read
            return FoundObject(digest=digest, size_bytes=head.size_bytes)

    async def list_temporaries(self, execution_id: str) -> tuple[Temporary, ...]:
        below = f"{MARKERS}/{execution_id}/"
        found: list[Temporary] = []
        token: str | None = None
        while True:
            page = await self._bucket.page(below, token=token)
            for entry in page.entries:
                fence = entry.key.removeprefix(below).partition(".")[0]
                found.append(Temporary(name=entry.key, fence=int(fence)))
            if (token := page.next_token) is None:
                return tuple(found)

    async def discard(self, temporary: Temporary) -> None:
        head = await self._bucket.head(temporary.name)
        if head is None:
            return
        try:
            content = json.loads(await self._bucket.read(temporary.name, head.etag, 0, head.size_bytes))
        except Conflict:
            return  # another owner was faster
        await self._abort(content["key"], content["uploadId"], temporary.name)

    async def _abort(self, key: str, upload_id: str, marker: str) -> None:
        with reporting(f"aborting the upload of {self._bucket.url_of(key)}"):
            try:
                await self._bucket.request("abort_multipart_upload", key, UploadId=upload_id)
            except AwsFailure as error:
                if not is_gone(error):
                    raise
        await self._unmark(marker)

    async def _unmark(self, marker: str) -> None:
        with reporting(f"removing {self._bucket.url_of(marker)}"):
            await self._bucket.request("delete_object", marker)

    async def _clean_up(self, session: UploadSession, upload_id: str) -> None:
        """Takes away what is left of an upload, also when its attempt is being cancelled."""
        with trio.move_on_after(CLEAN_UP_S, shield=True) as scope:
            try:
                if session.placed is None:
                    await self._abort(session.key, upload_id, session.temporary)
                else:
                    await self._unmark(session.temporary)
            except OutsideError as error:
                # What the attempt came to is settled; the marker stays, and the next owner finds it.
                log.warning("upload_left", marker=self._bucket.url_of(session.temporary), message=error.message)
        if scope.cancelled_caught:
            log.warning("upload_left", marker=self._bucket.url_of(session.temporary), message="took too long")
