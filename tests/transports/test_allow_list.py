"""Which hosts may be called and which addresses they may have, in every spelling that was used to get around it."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpfd.errors import ConfigError
from tpfd.transports.allow_list import AllowList, is_public, normal_host


def allow(*entries: str) -> AllowList:
    return AllowList.parse(entries, "$.a")


@pytest.mark.parametrize(
    ("entry", "host", "port", "admitted"),
    [
        ("api.example.org", "api.example.org", 443, True),
        ("api.example.org", "api.example.org", 8443, True),
        ("API.Example.org.", "api.example.org", 443, True),
        ("api.example.org", "xapi.example.org", 443, False),
        ("api.example.org", "example.org", 443, False),
        ("api.example.org", "api.example.org.evil.test", 443, False),
        ("api.example.org:8443", "api.example.org", 8443, True),
        ("api.example.org:8443", "api.example.org", 443, False),
        ("*.example.org", "api.example.org", 443, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "badexample.org", 443, False),
        ("*.example.org:8443", "api.example.org", 443, False),
        ("192.0.2.7", "192.0.2.7", 80, True),
        ("192.0.2.7:81", "192.0.2.7", 80, False),
        ("192.0.2.0/24", "192.0.2.7", 80, True),
        ("192.0.2.0/24", "192.0.3.7", 80, False),
        ("[2001:db8::1]:8080", "2001:db8::1", 8080, True),
        ("[2001:db8::1]:8080", "2001:db8::1", 80, False),
        ("2001:DB8:0::1", "2001:db8::1", 80, True),
        ("192.0.2.7", "::ffff:192.0.2.7", 80, False),
        ("0.0.0.0/0", "api.example.org", 80, False),
    ],
)
def test_a_host_is_called_when_an_entry_names_it(entry: str, host: str, port: int, admitted: bool) -> None:
    assert allow(entry).admits_host(host, port) is admitted


def test_an_empty_list_admits_nothing() -> None:
    assert not allow().admits_host("api.example.org", 443)
    assert not allow().admits_address("api.example.org", ipaddress.ip_address("10.0.0.1"), 443)


@pytest.mark.parametrize(
    "entry",
    [
        "", " ", "*", "*.", "https://api.example.org", "api.example.org/path", "user@api.example.org", "a b", "a..b",
        "api.example.org:0", "api.example.org:65536", "api.example.org:port", "api.*.org", "-a.example.org",
        "10.0.0.1/8", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.0x1", "[::1", "::1]:80",
        "[fe80::1%eth0]", "bücher.example",
    ],
)  # fmt: skip
def test_an_entry_that_means_nothing_is_refused_with_its_place(entry: str) -> None:
    with pytest.raises(ConfigError) as caught:
        allow("api.example.org", entry)
    (problem,) = caught.value.problems
    assert problem.path == "$.a[1]"
    assert repr(entry) in problem.message


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.5", "172.16.0.1", "172.31.255.255", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "198.18.0.1", "192.0.0.1", "192.0.2.1", "198.51.100.1", "203.0.113.1",
        "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
        "::", "::1", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "100::1", "2001::1",
        "::ffff:10.0.0.5", "::ffff:169.254.169.254", "::ffff:0:10.0.0.5", "::10.0.0.5", "::8.8.8.8",
        "64:ff9b::10.0.0.5", "64:ff9b::a9fe:a9fe", "64:ff9b:1::8.8.8.8",
        "2002:a00:5::1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "4000::1",
    ],
)  # fmt: skip
def test_inner_addresses_are_not_public_in_any_spelling(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    assert not allow("api.example.org").admits_address("api.example.org", ipaddress.ip_address(address), 443)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"],
)
def test_public_addresses_are(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@given(st.ip_addresses(v=4))
def test_a_wrapped_address_is_as_public_as_what_is_inside(inner: ipaddress.IPv4Address) -> None:
    for prefix in (0xFFFF << 32, 0x64FF9B << 96):
        assert is_public(ipaddress.IPv6Address(prefix | int(inner))) is is_public(inner)


def test_an_inner_address_is_connected_to_only_when_it_is_listed_itself() -> None:
    inner = ipaddress.ip_address("10.1.2.3")
    assert not allow("pay.internal", "pay.internal:8080", "*.internal").admits_address("pay.internal", inner, 8080)
    assert allow("pay.internal", "10.1.2.3").admits_address("pay.internal", inner, 8080)
    assert allow("pay.internal", "10.1.0.0/16").admits_address("pay.internal", inner, 8080)
    assert allow("pay.internal", "10.1.2.3:8080").admits_address("pay.internal", inner, 8080)
    assert not allow("pay.internal", "10.1.2.3:8081").admits_address("pay.internal", inner, 8080)


def test_localhost_means_this_host_and_nothing_else() -> None:
    listed = allow("localhost:9000")
    assert listed.admits_address("localhost", ipaddress.ip_address("127.0.0.1"), 9000)
    assert listed.admits_address("localhost", ipaddress.ip_address("::1"), 9000)
    assert not listed.admits_address("localhost", ipaddress.ip_address("127.0.0.1"), 9001)
    assert not listed.admits_address("localhost", ipaddress.ip_address("10.0.0.1"), 9000)
    assert not listed.admits_address("other", ipaddress.ip_address("127.0.0.1"), 9000)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "017700000001", "10.0.0.0x5", "0x", "1.2.3.4.5"])
def test_odd_spellings_of_addresses_are_no_hosts(host: str) -> None:
    with pytest.raises(ValueError, match="odd spelling"):
        normal_host(host)


@pytest.mark.parametrize("host", ["", ".", "a b", "a\tb", "ä.example", "fe80::1%eth0", "a" * 64, "a/b", "a@b"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="not a host name"):
        normal_host(host)
