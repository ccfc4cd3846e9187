"""What a configuration and its pipelines use outside: tables, queues, buckets, topics, and what is done with each.

One list, made here, is what `tpfd provision` makes, what `tpfd check --connect` and a strict start look at, and what
the printed IAM policy allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from attrs import asdict, evolve, frozen

from tpfd.aws.queue_urls import queue_region
from tpfd.config.model import Config
from tpfd.pipeline.model import AfterIngest, ObjectSource, ObjectTarget, Pipeline
from tpfd.program import Program
from tpfd.stores.dynamodb_tables import TableSpec, tables
from tpfd.transports.kafka_settings import read_kafka_steps
from tpfd.transports.sqs_settings import read_sqs_steps

WORK, LETTERS, REJECTS = "work hints", "dead letters", "rejected items"
REQUESTS, ANSWERS = "await requests", "await answers"


@frozen
class Site:
    """Where a service is: empty is the SDK's own region, and the region's own endpoint."""

    region: str = ""
    endpoint: str = ""


@frozen(kw_only=True)
class Queue:
    """A queue that is used.

    Attributes:
        path: the key that names it: ``$.dispatcher.sqs.queue-url``.
        uses: what goes through it.
        visibility_s: how long a received message is hidden; None: nothing is received.
        redrive_to: URL of the queue that gets what is received too often; None: nothing does.
    """

    url: str
    site: Site
    path: str
    uses: tuple[str, ...]
    sends: bool = False
    visibility_s: int | None = None
    redrive_to: str | None = None

    @property
    def receives(self) -> bool:
        return self.visibility_s is not None


@frozen(kw_only=True)
class Bucket:
    """A bucket, or a part of it, that is used.

    Attributes:
        path: the pipeline's key that names it.
        prefix: what all keys begin with.
        removes: objects are deleted, or moved within the bucket.
    """

    name: str
    site: Site
    path: str
    prefix: str
    reads: bool = False
    writes: bool = False
    removes: bool = False


@frozen(kw_only=True)
class Resources:
    """Everything that is used.

    Attributes:
        tables: of the store; empty when it is another.
        tables_site: where they are.
        queues: each once, those that others redrive to first.
        topics: of Kafka, for requests and answers.
    """

    tables: tuple[TableSpec, ...]
    tables_site: Site
    queues: tuple[Queue, ...]
    buckets: tuple[Bucket, ...]
    topics: tuple[str, ...] = ()

    @property
    def any_of_aws(self) -> bool:
        return bool(self.tables or self.queues or self.buckets)


def resources_of(config: Config, programs: Mapping[str, Program]) -> Resources:
    """Lists what is used."""
    dynamodb = config.store.dynamodb
    used = config.store.provider == "dynamodb"
    pipelines = [program.pipeline for _, program in sorted(programs.items())]
    return Resources(
        tables=tables(dynamodb.table_prefix, asdict(dynamodb.tables)) if used else (),
        tables_site=Site(dynamodb.region, dynamodb.endpoint),
        queues=_each_once(_queues(config, pipelines)),
        buckets=tuple(_buckets(pipelines)),
        topics=tuple(dict.fromkeys(_topics(pipelines))),
    )


def queue_site(config: Config, url: str) -> Site:
    """Where a queue is: all share ``dispatcher.sqs.region`` and ``endpoint``; without a region its URL tells it."""
    sqs = config.dispatcher.sqs
    return Site(sqs.region or queue_region(url), sqs.endpoint)


def _queues(config: Config, pipelines: Iterable[Pipeline]) -> Iterator[Queue]:
    letters = config.dead_letters.sqs.queue_url if config.dead_letters.provider == "sqs" else None
    if letters is not None:
        yield _queue(config, letters, "$.dead-letters.sqs.queue-url", LETTERS)
    if config.item_rejects.provider == "sqs":
        yield _queue(config, config.item_rejects.sqs.queue_url, "$.item-rejects.sqs.queue-url", REJECTS)
    if config.dispatcher.provider == "sqs":
        sqs = config.dispatcher.sqs
        work = _queue(config, sqs.queue_url, "$.dispatcher.sqs.queue-url", WORK)
        yield evolve(work, visibility_s=-(-sqs.visibility_ms // 1000), redrive_to=letters)
    poller = config.await_.sqs.poller
    answers = [(poller.response_queue_url, "$.await.sqs.poller.response-queue-url")]
    for pipeline in pipelines:
        for index, step in read_sqs_steps(pipeline).items():
            path = f"{pipeline.pipeline_id}: $.steps[{index}].await.transport"
            yield _queue(config, step.request_url, f"{path}.request.queueUrl", REQUESTS)
            if step.response_url is not None:
                answers.append((step.response_url, f"{path}.response.queueUrl"))
    if poller.enabled:
        visibility_s = -(-poller.visibility_ms // 1000)
        for url, path in answers:
            queue = _queue(config, url, path, ANSWERS)
            yield evolve(queue, sends=False, visibility_s=visibility_s, redrive_to=letters)


def _queue(config: Config, url: str, path: str, use: str) -> Queue:
    return Queue(url=url, site=queue_site(config, url), path=path, uses=(use,), sends=True)


def _each_once(queues: Iterable[Queue]) -> tuple[Queue, ...]:
    """One entry per URL, which does all that its entries do."""
    found: dict[str, Queue] = {}
    for queue in queues:
        if (seen := found.get(queue.url)) is None:
            found[queue.url] = queue
            continue
        found[queue.url] = evolve(
            seen,
            uses=tuple(dict.fromkeys((*seen.uses, *queue.uses))),
            sends=seen.sends or queue.sends,
            visibility_s=queue.visibility_s if seen.visibility_s is None else seen.visibility_s,
            redrive_to=seen.redrive_to or queue.redrive_to,
        )
    return tuple(found.values())


def _topics(pipelines: Iterable[Pipeline]) -> Iterator[str]:
    for pipeline in pipelines:
        for step in read_kafka_steps(pipeline).values():
            yield step.request_topic
            yield step.response_topic


def _buckets(pipelines: Iterable[Pipeline]) -> Iterator[Bucket]:
    for pipeline in pipelines:
        for name, source in pipeline.sources.items():
            if source.provider == "s3":
                removes = source.after is not AfterIngest.KEEP
                bucket = _bucket(source, f"{pipeline.pipeline_id}: $.sources.{name}.location.bucket")
                yield evolve(bucket, reads=True, writes=source.after is AfterIngest.MOVE, removes=removes)
        for name, target in pipeline.publish.items():
            if target.provider == "s3":
                bucket = _bucket(target, f"{pipeline.pipeline_id}: $.publish.{name}.location.bucket")
                yield evolve(bucket, reads=True, writes=True, removes=True)


def _bucket(place: ObjectSource | ObjectTarget, path: str) -> Bucket:
    region, endpoint = (str(place.settings.get(name) or "") for name in ("region", "endpoint"))
    return Bucket(name=place.root, site=Site(region, endpoint), path=path, prefix=place.prefix)
