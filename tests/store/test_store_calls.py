"""Calls to a store end in time, whatever the store does, and what cannot be stopped does not pile up."""

from __future__ import annotations

import threading
import time

import pytest

from seamlessflow.errors import Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.store.timeouts import StoreCalls, StoreTimeouts


def test_what_a_call_gives_and_raises_is_what_it_gave_and_raised():
    """In whichever thread it was made."""
    calls = StoreCalls()

    assert calls.within(5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        calls.within(5, lambda: 1 // 0)


def test_a_call_that_hangs_is_left_behind_and_only_so_many_are():
    """A mount that does not answer: every caller is told in time, later ones at once; when it answers all is well."""
    calls, answer = StoreCalls(most_at_once=3), threading.Event()
    before = set(threading.enumerate())
    for _ in range(3):
        with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
            calls.within(0.01, answer.wait)
    for _ in range(20):
        with pytest.raises(TimeoutError, match="3 earlier calls have not come back"):
            calls.within(0.01, answer.wait)
    assert len(set(threading.enumerate()) - before) == 3  # those of other tests may end meanwhile

    answer.set()
    assert calls.within(5, lambda: "again") == "again"


def test_calls_one_after_the_other_need_one_thread():
    """Starting one takes longer than most local calls."""
    calls = StoreCalls()

    assert len({calls.within(5, threading.get_ident) for _ in range(20)}) == 1


def test_a_larger_call_may_take_longer():
    """A second for each megabyte, as it is set."""
    assert StoreTimeouts(30.0, 1e6).seconds() == 30.0
    assert StoreTimeouts(30.0, 1e6).seconds(8_000_000) == 38.0


@pytest.mark.parametrize("act", ["read", "read_range", "write", "write_chunks", "exists", "folders", "remove", "remove_folder"])
def test_a_folder_that_hangs_is_unavailable(tmp_path, monkeypatch, act):
    """Whatever is asked of it: a network mount whose server is gone."""
    store, answer = (
        Store(f"file://{tmp_path}/store", StoreTimeouts(call_seconds=0.05, bytes_per_second=1e12)),
        threading.Event(),
    )
    store.write("demo/x", b"content")
    for name in ("cat_file", "pipe_file", "open", "exists", "ls", "rm_file", "rm"):
        monkeypatch.setattr(store.fs, name, lambda *arguments, **options: answer.wait(10))
    arguments = {"read_range": (0, 3), "write": (b"new",), "write_chunks": ([b"new"],)}.get(act, ())

    began = time.monotonic()
    with pytest.raises(Unavailable, match="no answer within"):
        getattr(store, act)("demo/x", *arguments)
    assert time.monotonic() - began < 5
    answer.set()


def test_a_writer_that_fails_half_way_leaves_nothing(store, store_url):
    """Neither the half nor, in a folder, the name it was written under; what was there before stays."""

    def dies():
        yield b"x" * 1000
        raise OSError("killed here")

    store.write("demo/x", b"before")
    with pytest.raises(Unavailable, match=r"cannot write demo/x \(after 1000 bytes\): killed here"):
        store.write_chunks("demo/x", dies())
    with pytest.raises(Unavailable):
        store.write_chunks("demo/y", dies())

    assert Store(store_url).folders("demo") == ["x"] and store.read("demo/x") == b"before"


def test_who_comes_while_all_calls_are_left_behind_does_not_wait():
    """However long that call might take: nobody but the store can make room. While one is in time there is hope."""
    calls, answer = StoreCalls(most_at_once=2), threading.Event()
    with pytest.raises(TimeoutError):
        calls.within(0.01, answer.wait)
    in_time = threading.Thread(target=calls.within, args=(10, lambda: time.sleep(0.2)))
    in_time.start()
    assert calls.within(10, lambda: "waited for") == "waited for"
    in_time.join()
    with pytest.raises(TimeoutError):
        calls.within(0.01, answer.wait)

    began = time.monotonic()
    with pytest.raises(TimeoutError, match="2 earlier calls have not come back"):
        calls.within(30, lambda: 7)
    assert time.monotonic() - began < 5
    answer.set()


def test_a_process_that_may_have_no_more_threads_loses_no_place(monkeypatch):
    """When it may again, all is well."""
    calls = StoreCalls(most_at_once=1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError):
            calls.within(5, lambda: 7)

    assert calls.within(0.5, lambda: 7) == 7


def test_a_size_that_cannot_be_told_in_time_is_none(tmp_path, monkeypatch):
    """It is only a figure; a mount that hangs holds up no list of versions."""
    store, answer = (
        Store(f"file://{tmp_path}/store", StoreTimeouts(call_seconds=0.05, bytes_per_second=1e12)),
        threading.Event(),
    )
    store.write("demo/x/y", b"content")
    assert store.bytes_below("demo/x") == 7
    monkeypatch.setattr(store.fs, "du", lambda *arguments, **options: answer.wait(10))

    assert store.bytes_below("demo/x") is None
    answer.set()
