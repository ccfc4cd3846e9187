"""Tries to reach what the configuration names, and says of each whether it can be worked with and what to do.

`tpfd check --connect` prints it, `tpfd doctor` takes it along, and a strict start ends with what is not in order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import trio
from attrs import define, field

from tpfd.aws.calls import AwsCalls
from tpfd.aws.failures import AwsFailure, Failure
from tpfd.aws.queue_urls import queue_name
from tpfd.blocking import Threads
from tpfd.clock import Clock, SystemClock
from tpfd.config.model import Config
from tpfd.daemon.aws_sites import (
    Clients,
    bucket_there,
    described,
    expires,
    is_active,
    queue_state,
    queue_there,
    service_epoch_ms,
)
from tpfd.daemon.findings import Finding
from tpfd.daemon.resources import Bucket, Queue, resources_of
from tpfd.durations import format_duration
from tpfd.errors import TransportError
from tpfd.program import Program
from tpfd.stores.dynamodb_tables import TTL, TableSpec
from tpfd.transports.kafka_look import missing_topics
from tpfd.transports.kafka_settings import KafkaSettings

PROVISION = "run: tpfd provision"
TABLES = "$.store.dynamodb"
"""Path of the findings about tables."""
CLOCK = "clock"
"""What the finding about the clock is about: takeovers depend on clocks, correctness does not."""
_WHAT_TO_DO = {
    Failure.CREDENTIALS: "give it valid credentials: a role, AWS_PROFILE, or AWS_ACCESS_KEY_ID and its like",
    Failure.UNREACHED: "see that region and endpoint are right and can be reached from here",
    Failure.REFUSED: "see that it is allowed (tpfd provision --print iam shows what is needed)",
}
_LATER = "try again; if it stays so, look at the state of the service"


async def connections(config: Config, programs: Mapping[str, Program]) -> list[Finding]:
    """One finding for each table, queue and bucket, one for the clock, and one for Kafka; none for what is not used.

    Raises:
        ConfigError: a client cannot be made: the SDK is missing, or no region is known.
    """
    used, clients = resources_of(config, programs), Clients()
    looks: list[_Look] = []
    if used.tables:
        dynamodb = await clients.at("dynamodb", used.tables_site)
        looks += [_Look(f"table {one.name}", TABLES, partial(_table, dynamodb, one)) for one in used.tables]
        compare = partial(_clock, dynamodb, used.tables[0], SystemClock(), config.lease.skew_ms)
        looks.append(_Look(CLOCK, "$.lease.skew", compare))
    for queue in used.queues:
        sqs = await clients.at("sqs", queue.site)
        looks.append(_Look(f"queue {queue_name(queue.url)}", queue.path, partial(_queue, sqs, queue)))
    for bucket in used.buckets:
        s3 = await clients.at("s3", bucket.site)
        looks.append(_Look(f"bucket {bucket.name}", bucket.path, partial(_bucket, s3, bucket)))
    if used.topics:
        kafka = config.await_.kafka
        settings = KafkaSettings(bootstrap=kafka.bootstrap, client_id=kafka.client_id, properties=kafka.properties)
        looks.append(_Look("kafka", "$.await.kafka.bootstrap", partial(_topics, settings, used.topics)))
    async with trio.open_nursery() as nursery:
        for look in looks:
            nursery.start_soon(look.run)
    return [look.finding for look in looks]


@define(eq=False)
class _Look:
    """One look at one thing, beside others.

    Attributes:
        call: says how it is, and what to do; the latter is empty when it is in order.
    """

    about: str
    path: str
    call: Callable[[], Awaitable[tuple[str, str]]]
    finding: Finding = field(init=False)

    async def run(self) -> None:
        try:
            said, advice = await self.call()
        except AwsFailure as error:
            said, advice = error.message, _WHAT_TO_DO.get(error.failure, _LATER)
        except TransportError as error:
            said, advice = error.message, "see that the address is right and can be reached from here"
        self.finding = Finding(self.about, said, advice, self.path)


async def _table(dynamodb: AwsCalls, table: TableSpec) -> tuple[str, str]:
    found = await described(dynamodb, table.name)
    if found is None:
        return "is not there", PROVISION
    there = {index["IndexName"] for index in found.get("GlobalSecondaryIndexes", ())}
    if lacking := [name for name in table.indexes if name not in there]:
        return f"lacks the index {', '.join(lacking)}", PROVISION
    if not is_active(found):
        return f"is {found['TableStatus']}, or an index of it is not ACTIVE yet", "wait until it is ACTIVE"
    if await expires(dynamodb, table.name) != TTL:
        return f"does not expire rows by {TTL}: it would grow for ever", PROVISION
    return f"ACTIVE, {len(table.indexes)} indexes", ""


async def _clock(dynamodb: AwsCalls, table: TableSpec, clock: Clock, skew_ms: int) -> tuple[str, str]:
    """Compares our clock with the service's, which all replicas share."""
    before_ms = clock.now_ms()
    there_ms = await service_epoch_ms(dynamodb, table.name)
    if there_ms is None:
        return "not compared: the service did not say what time it is", ""
    # It said so at some moment between our two looks at the clock, and in whole seconds: what that leaves open is no
    # difference.
    ahead_ms, behind_ms = before_ms - (there_ms + 999), there_ms - clock.now_ms()
    if ahead_ms <= skew_ms and behind_ms <= skew_ms:
        return "agrees with the service's within lease.skew", ""
    way, off_ms = ("ahead", ahead_ms) if ahead_ms > 0 else ("behind", behind_ms)
    return f"at least {format_duration(off_ms)} {way} of the service's", "synchronise it (chronyc tracking)"


async def _queue(sqs: AwsCalls, queue: Queue) -> tuple[str, str]:
    if not await queue_there(sqs, queue.url):
        return "is not there", PROVISION
    state = await queue_state(sqs, queue.url)
    waiting, hidden = (state.get(f"ApproximateNumberOfMessages{kind}", "?") for kind in ("", "NotVisible"))
    said = f"{', '.join(queue.uses)}: {waiting} waiting, {hidden} in hand"
    if queue.redrive_to is not None and "RedrivePolicy" not in state:
        said += "; no redrive policy, so what nobody can take stays in it for ever"
    return said, ""


async def _bucket(s3: AwsCalls, bucket: Bucket) -> tuple[str, str]:
    if not await bucket_there(s3, bucket.name, bucket.prefix):
        return "is not there", "make it; tpfd makes no buckets"
    does = [word for word, use in (("read", bucket.reads), ("written", bucket.writes)) if use]
    return f"can be listed; is {' and '.join(does)} under {bucket.prefix or '/'}", ""


async def _topics(settings: KafkaSettings, topics: Sequence[str]) -> tuple[str, str]:
    missing = await Threads(1).run(partial(missing_topics, settings, topics))
    if missing:
        return f"answers, but has no topic {', '.join(missing)}", "make it; tpfd makes no topics"
    return f"answers, and has {', '.join(topics)}", ""
