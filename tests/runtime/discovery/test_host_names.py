"""Names that ssh may see."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps_configs.errors import HeterpsError
from heterps_runtime.discovery.asking import command_for
from heterps_runtime.discovery.host_names import MOST_HOSTS, host_names


def test_names_come_with_commas_and_from_files(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# all of them\nuser@c.example.org  # the big one\n\n10.0.0.7\n[fe80::1]\n")
    assert host_names("a, b-1", file) == ("a", "b-1", "user@c.example.org", "10.0.0.7", "[fe80::1]")
    assert host_names(None, None) == ("localhost",)


def test_this_machine_needs_no_ssh_and_addresses_no_brackets() -> None:
    assert command_for("localhost") == ("sh", "-s")
    command = command_for("root@[::1]")
    assert command[:1] == ("ssh",)
    assert command[-3:] == ("root@::1", "sh", "-s")
    assert "BatchMode=yes" in command
    assert "ConnectTimeout=10" in command


@pytest.mark.parametrize(
    "name",
    [
        "-oProxyCommand=touch /tmp/owned",
        "-v",
        "user@-oProxyCommand=x",
        "-l@host",
        "a b",
        "a;reboot",
        "$(reboot)",
        "`reboot`",
        "a\nb",
        "a/b",
        "a@b@c",
        "ä",
        "٣",
        "a|b",
        "[a;b]",
        "x" * 256,
    ],
)
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(HeterpsError, match="is no name of a host"):
        host_names(name, None)
    with pytest.raises(HeterpsError, match="is no name of a host"):
        command_for(name)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (" , ", "no host is named"),
        ("a,b,a", "a stands there twice"),
        (",".join(f"h{index}" for index in range(MOST_HOSTS + 1)), "257 hosts; at most 256"),
    ],
)
def test_lists_that_make_no_cluster_are_refused(names: str, message: str) -> None:
    with pytest.raises(HeterpsError, match=message):
        host_names(names, None)


def test_a_file_without_hosts_is_named(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# nobody\n")
    with pytest.raises(HeterpsError, match="hosts: no host is named") as error:
        host_names(None, file)
    assert str(error.value).startswith(str(file))
