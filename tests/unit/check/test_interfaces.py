"""Network interfaces: what kind they are, and their addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.check.network.addresses import (
    Interface,
    family_of,
    holder_of,
    ipv6_in,
    is_loopback,
    is_of_use,
    kind_of,
    read_interfaces,
)

_IF_INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
fe8000000000000000fc00fffe000001 04 40 20 80     eth0
fd000000000000000000000000000002 04 40 00 82     eth0
broken line
"""


def test_this_machine_has_a_loopback_interface() -> None:
    found = {i.name: i for i in read_interfaces()}
    assert found["lo"].kind == "loopback"
    assert found["lo"].is_up
    assert "127.0.0.1" in found["lo"].addresses
    assert found["lo"].mtu_bytes > 1000


def test_addresses_of_one_link_come_last() -> None:
    assert ipv6_in(_IF_INET6) == [("lo", "::1"), ("eth0", "fd00::2"), ("eth0", "fe80::fc:ff:fe00:1")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ib0", "infiniband"),
        ("docker0", "container-bridge"),
        ("br-0123456789ab", "container-bridge"),
        ("virbr0", "container-bridge"),
        ("br0", "bridge"),
        ("veth1", "virtual"),
        ("eth0", "device"),
        ("gone0", "device"),
    ],
)
def test_kinds(tmp_path: Path, name: str, kind: str) -> None:
    folder = tmp_path / "class/net"
    for real, type_number in (
        ("pci0/net/eth0", 1),
        ("pci0/net/ib0", 32),
        ("virtual/net/veth1", 1),
        ("virtual/net/br0", 1),
    ):
        target = tmp_path / "devices" / real
        target.mkdir(parents=True)
        (target / "type").write_text(f"{type_number}\n")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / target.name).symlink_to(target)
    (tmp_path / "devices/virtual/net/br0/bridge").mkdir()
    assert kind_of(name, False, folder) == kind


def test_kinds_of_addresses() -> None:
    assert [is_loopback(a) for a in ("127.0.1.1", "::1", "10.0.0.1", "fe80::1%eth0", "no address")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert not is_of_use("fe80::1%eth0")
    assert not is_of_use("169.254.3.4")
    assert is_of_use("10.0.0.1")
    assert (family_of("fd00::1"), family_of("10.0.0.1")) == ("IPv6", "IPv4")


def test_who_has_an_address() -> None:
    lo, eth = (
        Interface("lo", "loopback", addresses=("127.0.0.1",)),
        Interface("eth0", addresses=("10.0.0.1", "fe80::1")),
    )
    assert holder_of("127.0.1.1", (lo, eth)) is lo
    assert holder_of("fe80::1%eth0", (lo, eth)) is eth
    assert holder_of("10.0.0.2", (lo, eth)) is None
