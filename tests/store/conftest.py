"""One suite over a local folder, memory and a real S3 server (moto's, on a free port)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec
import pytest

from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.store.large_payloads import Store
from seamlessflow.store.timeouts import StoreTimeouts
from seamlessflow.weights import download
from tests.store.fault_proxy import FaultProxy
from tests.store.s3_server import BUCKET, ENVIRONMENT, s3_proxy, s3_server

if TYPE_CHECKING:
    from tests.store.weights_place import Place


@pytest.fixture
def s3_url(monkeypatch) -> str:
    """A store URL of our own on a server; endpoint and credentials come from the environment, as in a deployment."""
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL_S3": s3_server()}.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture(params=["file", "memory", "s3"])
def store_url(request: pytest.FixtureRequest, tmp_path) -> str:
    """All kinds in turn."""
    urls = {"file": f"file://{tmp_path}/store", "memory": f"memory://{uuid.uuid4().hex}"}
    return urls.get(request.param) or request.getfixturevalue("s3_url")


@pytest.fixture
def store(store_url: str) -> Store:
    return Store(store_url)


@pytest.fixture
def proxy(s3_url: str, monkeypatch) -> Iterator[FaultProxy]:
    """What stands between us and the server from now on; clients are as services have them."""
    running = s3_proxy()
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": running.url})
    yield running
    running.heal()


@pytest.fixture
def impatient_proxy(proxy: FaultProxy, monkeypatch) -> FaultProxy:
    """The same, whose clients ask once; readers wait less before they ask again."""
    once = {"endpoint_url": proxy.url, "config_kwargs": {"retries": {"total_max_attempts": 1}}}
    monkeypatch.setitem(fsspec.config.conf, "s3", once)
    monkeypatch.setattr(download, "PAUSES_SECONDS", (0.01, 0.02, 0.05, 0.1))
    fsspec.filesystem("s3").retries = 1
    return proxy


@pytest.fixture
def proxied(impatient_proxy: FaultProxy, s3_url: str) -> Store:
    """A store behind the proxy."""
    return Store(s3_url, StoreTimeouts(call_seconds=10.0))


@pytest.fixture
def place(store: Store, own_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A run with versions, and nothing of it in this folder."""
    from tests.store.weights_place import Place  # the whole command, which few tests need

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEAMLESSFLOW_NATS_URL", raising=False)
    monkeypatch.delenv("SEAMLESSFLOW_STORE_URL", raising=False)
    made = Place(store, own_server)
    made.begin()
    return made
