"""Addresses: kept for the same user only, and good enough to come back with."""

import os
import stat

import pytest

from seamlessflow.cli import run_location
from seamlessflow.cli.run_location import RUNS, Address, Folder, address_of, any_address, given_address
from seamlessflow.errors import ConfigError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_an_address_holds_a_password_and_is_readable_by_its_owner_only():
    """Whatever the file was before."""
    folder = Folder(RUNS / "a")
    folder.path.mkdir(parents=True)
    (folder.path / "up.json").write_text("{}")
    folder.announce(Address("nats://me:hush@h:1", "file:///s", os.getpid()))

    assert stat.S_IMODE((folder.path / "up.json").stat().st_mode) == 0o600
    assert folder.address() == Address("nats://me:hush@h:1", "file:///s", os.getpid())


def test_the_folder_of_a_running_up_stands_for_its_server_and_store():
    """So that nobody has to type a password or remember a store."""
    folder = Folder(RUNS / "up")
    folder.announce(Address("nats://me:hush@h:1", "file:///s", os.getpid()))

    assert given_address("runs/up", None) == Address("nats://me:hush@h:1", "file:///s", elsewhere=True)
    folder.retire()
    with pytest.raises(ConfigError, match="no `seamlessflow up` is running"):
        given_address("runs/up", None)


def test_a_run_that_lives_elsewhere_is_found_again():
    """``train --nats`` leaves the address; no process of ours is needed for it."""
    kept = Address("nats://h:1", "s3://b/p", elsewhere=True)
    Folder(RUNS / "a").announce(kept)

    assert address_of("a", None, None) == kept
    assert address_of("a", "nats://other:2", None) == Address("nats://other:2", "s3://b/p", elsewhere=True)


def test_only_servers_of_this_machine_are_found_without_being_named():
    """A run elsewhere leaves its address here; nobody knows whether that server is still there."""
    Folder(RUNS / "far").announce(Address("nats://far:1", None, elsewhere=True))
    with pytest.raises(ConfigError, match="0 servers"):
        any_address(None)
    Folder(RUNS / "up").announce(Address("nats://h:1", "file:///s", os.getpid()))

    assert any_address(None) == "nats://h:1"


def test_looking_at_a_stopped_run_waits_for_another_look(monkeypatch):
    """And says so when that one does not end: two servers on one journal would ruin it."""
    folder = Folder(RUNS / "a")
    folder.announce(Address("nats://h:1", "file:///s"))
    folder.server.mkdir()
    monkeypatch.setattr(run_location, "LOCK_SECONDS", 0.1)
    refused = pytest.raises(ConfigError, match="in use by another nats-server")
    with run_location.stopped_run("a", None), refused, run_location.stopped_run("a", None):
        pass
    with run_location.stopped_run("a", None) as found:
        assert found.store_url == "file:///s"


def test_a_run_whose_command_is_gone_has_no_address():
    """Its server must be started; its store is still known."""
    folder = Folder(RUNS / "a")
    folder.announce(Address("nats://h:1", "s3://b/p", os.getpid()))
    folder.retire()

    assert address_of("a", None, None) is None
    assert folder.address().store_url == "s3://b/p"
