"""Connecting: one look-up, every address judged, and the one that was judged is the one that is connected to."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
import trio.testing
from attrs import define, field

from tpfd.transports.allow_list import Address, AllowList
from tpfd.transports.checked_network import TRY_S, CheckedNetwork, Refused, Unreachable, resolve

Act = Callable[[str, int], Awaitable[trio.abc.Stream]]


@define(eq=False)
class Net:
    """A resolver and a network that note what they are asked.

    Attributes:
        names: addresses by name.
        asked: names that were looked up.
        connected: addresses that were connected to.
        failing: addresses that refuse.
        silent: addresses that never answer.
    """

    names: dict[str, list[str]]
    asked: list[str] = field(factory=list)
    connected: list[tuple[str, int]] = field(factory=list)
    failing: set[str] = field(factory=set)
    silent: set[str] = field(factory=set)

    async def resolve(self, host: str, _port: int) -> Sequence[Address]:
        await trio.lowlevel.checkpoint()
        self.asked.append(host)
        if host not in self.names:
            raise OSError(-2, "Name or service not known")
        return [ipaddress.ip_address(text) for text in self.names[host]]

    async def connect(self, address: str, port: int) -> trio.abc.Stream:
        self.connected.append((address, port))
        if address in self.silent:
            await trio.sleep_forever()
        if address in self.failing:
            raise ConnectionRefusedError(111, "Connection refused")
        return trio.testing.memory_stream_pair()[0]

    def network(self, *allow: str) -> CheckedNetwork:
        return CheckedNetwork(allowed=AllowList.parse(allow, "$"), resolve=self.resolve, connect=self.connect)


async def test_a_name_is_looked_up_once_and_connected_to_by_number() -> None:
    net = Net({"pay.example.org": ["8.8.8.8", "8.8.4.4"]})
    await net.network("pay.example.org").connect_tcp("pay.example.org", 443)
    assert (net.asked, net.connected) == (["pay.example.org"], [("8.8.8.8", 443)])


@pytest.mark.parametrize(
    "addresses",
    [
        ["169.254.169.254"],
        ["127.0.0.1"],
        ["::1"],
        ["::ffff:10.0.0.5"],
        ["8.8.8.8", "10.0.0.5"],
        ["10.0.0.5", "8.8.8.8"],
        ["2606:4700::1111", "fe80::1"],
        ["64:ff9b::169.254.169.254"],
    ],
)
async def test_a31_a_name_with_an_inner_address_is_refused_and_nothing_is_sent(
    addresses: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    net = Net({"pay.example.org": addresses})
    with pytest.raises(Refused) as caught:
        await net.network("pay.example.org").connect_tcp("pay.example.org", 443)
    assert net.connected == []
    assert not any(str(one) in caught.value.message for one in await net.resolve("pay.example.org", 443))
    assert not caught.value.retryable
    (logged,) = (record for record in caplog.records if record.getMessage() == "webhook_address_refused")
    assert logged.levelno == logging.ERROR
    assert ipaddress.ip_address(logged.tpfd_fields["address"]) in await net.resolve("pay.example.org", 443)  # type: ignore[attr-defined]


async def test_a31_a_name_that_changes_its_address_between_checks_is_refused() -> None:
    net = Net({"pay.example.org": ["8.8.8.8"]})
    network = net.network("pay.example.org")
    await network.connect_tcp("pay.example.org", 443)
    net.names["pay.example.org"] = ["169.254.169.254"]
    with pytest.raises(Refused):
        await network.connect_tcp("pay.example.org", 443)
    assert net.connected == [("8.8.8.8", 443)]


async def test_a31_a_literal_inner_address_is_refused_also_when_configuration_let_it_through() -> None:
    net = Net({})
    with pytest.raises(Refused):
        await net.network("pay.example.org").connect_tcp("10.0.0.5", 80)
    assert (net.asked, net.connected) == ([], [])


async def test_an_odd_spelling_that_the_system_resolves_is_judged_by_what_it_means() -> None:
    assert ipaddress.ip_address("127.0.0.1") in await resolve("127.1", 80)
    assert await resolve("2130706433", 80) == [ipaddress.ip_address("127.0.0.1")]


async def test_an_inner_address_that_is_listed_is_connected_to() -> None:
    net = Net({"pay.internal": ["10.1.2.3"]})
    await net.network("pay.internal", "10.1.0.0/16").connect_tcp("pay.internal", 80)
    await net.network("127.0.0.1:8080").connect_tcp("127.0.0.1", 8080)
    assert net.connected == [("10.1.2.3", 80), ("127.0.0.1", 8080)]
    assert net.asked == ["pay.internal"], "an address is not looked up"


async def test_a_host_that_was_taken_off_the_list_is_refused() -> None:
    net = Net({"pay.example.org": ["8.8.8.8"]})
    network = net.network("pay.example.org")
    network.allowed = AllowList()
    with pytest.raises(Refused, match="not on the allow-list any more"):
        await network.connect_tcp("pay.example.org", 443)


async def test_the_next_address_is_tried_when_one_refuses(autojump_clock: trio.testing.MockClock) -> None:
    net = Net({"pay.example.org": ["8.8.8.8", "8.8.4.4", "1.1.1.1"]}, failing={"8.8.8.8"}, silent={"8.8.4.4"})
    began = trio.current_time()
    await net.network("pay.example.org").connect_tcp("pay.example.org", 443)
    assert net.connected == [("8.8.8.8", 443), ("8.8.4.4", 443), ("1.1.1.1", 443)]
    assert trio.current_time() - began == TRY_S


async def test_what_cannot_be_reached_now_may_be_reached_later() -> None:
    net = Net({"pay.example.org": ["8.8.8.8"], "empty.example.org": []}, failing={"8.8.8.8"})
    network = net.network("*.example.org")
    for host, said in (
        ("pay.example.org", "cannot connect to pay.example.org:443"),
        ("empty.example.org", "has no address"),
        ("unknown.example.org", "cannot find the address of unknown.example.org: Name or service not known"),
    ):
        with pytest.raises(Unreachable, match=said) as caught:
            await network.connect_tcp(host, 443)
        assert caught.value.retryable
