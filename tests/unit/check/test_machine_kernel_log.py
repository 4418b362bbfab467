"""Messages of the kernel, in the forms of /dev/kmsg and of dmesg."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.check.machine import KernelMessage, kernel_messages, parse_lines, parse_record


def test_a_record_of_the_device() -> None:
    record = b"3,1520,81234567,-;NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n"
    assert parse_record(record) == KernelMessage(
        81.234567, 3, "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus."
    )
    assert parse_record(b"6,1,5,c,caller=T1;with more fields\n") == KernelMessage(5e-6, 6, "with more fields")
    assert parse_record(b"no record at all") is None


def test_lines_of_dmesg() -> None:
    text = "<4>[   12.500000] eth0: Link is Down\n[ 7.25] plain\nnot a line\n"
    assert parse_lines(text) == (KernelMessage(12.5, 4, "eth0: Link is Down"), KernelMessage(7.25, 6, "plain"))


def test_a_log_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("unhang.check.machine._buffer", refuse)
    with pytest.raises(OSError, match="kmsg"):
        kernel_messages(device=tmp_path / "kmsg")
