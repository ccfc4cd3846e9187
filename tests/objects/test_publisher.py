"""The publisher over real locations: which key, what is adopted, what is called back."""

from __future__ import annotations

import pytest
from attrs import define, evolve, field

from tests.conformance.samples import execution
from tests.objects.places import Location
from tpfd.core.publication import OnExisting
from tpfd.core.records import ExecutionRecord, Publication
from tpfd.errors import LostLease, NonRetryableError
from tpfd.objects.formats import CsvEncoder
from tpfd.objects.publisher import ObjectPublisher

NOW_EPOCH_MS = 1_796_000_000_000  # 2026-11-30


@define
class Attempt:
    """One owner of the execution, in a process of its own."""

    place: Location
    record: ExecutionRecord
    on_existing: OnExisting = OnExisting.FAIL
    template: str = "{date}/{inputName}.out"
    overtaken: bool = False
    prepared: list[Publication] = field(factory=list)

    @property
    def publisher(self) -> ObjectPublisher:
        return ObjectPublisher(
            target=self.place.target(self.on_existing),
            name="out",
            key_template=self.template,
            on_existing=self.on_existing,
            make_encoder=lambda: CsvEncoder(["a"]),
            now_epoch_ms=lambda: NOW_EPOCH_MS,
        )

    async def prepare(self, publication: Publication) -> None:
        if self.overtaken:
            raise LostLease("the fence moved")
        self.prepared.append(publication)

    async def publish(self, text: str) -> str:
        """Publishes one row; the key."""
        async with self.publisher.open(self.record) as output:
            await output.write([{"a": text}])
            await output.place(self.prepare)
        return self.prepared[-1].object_key

    def next(self, *, knows: bool = True) -> Attempt:
        """The owner after this one."""
        publication = self.prepared[-1] if knows and self.prepared else self.record.publication
        return Attempt(
            self.place, evolve(self.record, fence=self.record.fence + 1, publication=publication), self.on_existing
        )


def attempt(place: Location, on_existing: OnExisting = OnExisting.FAIL) -> Attempt:
    return Attempt(place, execution(fence=1, source_key="p.csv"), on_existing)


async def test_the_key_comes_from_the_template(place: Location) -> None:
    assert await attempt(place).publish("x") == "2026-11-30/p.csv.out"
    assert place.read("2026-11-30/p.csv.out") == b"a\nx\n"
    assert place.leftovers() == []


@pytest.mark.parametrize("source_key", ["../p.csv", "/p.csv", "a\\b.csv", "con"])
async def test_a32_a_key_that_leaves_the_location_is_refused(place: Location, source_key: str) -> None:
    one = Attempt(place, execution(fence=1, source_key=source_key), template="{inputName}")
    with pytest.raises(NonRetryableError) as caught:
        await one.publish("x")
    assert caught.value.code == "object_key_refused"
    assert (place.objects(), place.leftovers()) == ([], [])


async def test_another_object_fails_is_replaced_or_is_gone_round(place: Location) -> None:
    for key in ("2026-11-30/p.csv.out", "2026-11-30/p.csv.v2.out"):
        place.put(key, "another's")
    with pytest.raises(NonRetryableError, match="another object stands at") as caught:
        await attempt(place).publish("x")
    assert caught.value.code == "output_exists"
    version = attempt(place, OnExisting.VERSION)
    assert await version.publish("y") == "2026-11-30/p.csv.v3.out"
    assert [one.object_key for one in version.prepared] == ["2026-11-30/p.csv.v3.out"]
    assert await attempt(place, OnExisting.REPLACE).publish("z") == "2026-11-30/p.csv.out"
    contents = {key: place.read(key) for key in place.objects()}
    assert contents == {
        "2026-11-30/p.csv.out": b"a\nz\n",
        "2026-11-30/p.csv.v2.out": b"another's",
        "2026-11-30/p.csv.v3.out": b"a\ny\n",
    }
    assert place.leftovers() == []


@pytest.mark.parametrize("on_existing", list(OnExisting))
async def test_what_an_earlier_attempt_has_placed_is_adopted(place: Location, on_existing: OnExisting) -> None:
    first = attempt(place, on_existing)
    key = await first.publish("x")
    assert await first.next().publisher.adopt(first.next().record)
    place.put(key, "another's")
    assert not await first.next().publisher.adopt(first.next().record)
    place.delete(key)
    assert not await first.next().publisher.adopt(first.next().record)


async def test_an_attempt_that_lost_its_lease_places_nothing(place: Location) -> None:
    late = attempt(place)
    late.overtaken = True
    with pytest.raises(LostLease):
        await late.publish("x")
    assert (place.objects(), place.leftovers()) == ([], [])


@pytest.mark.parametrize("on_existing", list(OnExisting))
async def test_an_attempt_that_was_prepared_is_called_back_by_the_next(
    place: Location, on_existing: OnExisting
) -> None:
    late = attempt(place, on_existing)

    async def overtake(publication: Publication) -> None:
        if late.prepared:
            raise LostLease("a newer owner has it")
        late.prepared.append(publication)
        newer = late.next()
        assert not await newer.publisher.adopt(newer.record)
        await newer.publish("newer")
        place.delete("2026-11-30/p.csv.out")  # a consumer takes it at once

    async with late.publisher.open(late.record) as output:
        await output.write([{"a": "late"}])
        with pytest.raises(LostLease, match="a newer owner"):
            await output.place(overtake)
    assert (place.objects(), place.leftovers()) == ([], [])
