"""One suite over a local folder and a real S3 server (moto's, on a free port)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import boto3
import pytest
import s3fs
from moto.server import ThreadedMotoServer

from seamlessflow.blobs import Store

BUCKET = "lake"


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A server that speaks S3."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_url(s3_endpoint: str, monkeypatch) -> Iterator[str]:
    """A store URL of our own in it; endpoint and credentials come from the environment, as in a deployment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()  # an instance keeps the environment it was made in
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    yield f"s3://{BUCKET}/{uuid.uuid4().hex}"
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture(params=["file", "s3"])
def store_url(request: pytest.FixtureRequest, tmp_path) -> str:
    """Both kinds in turn."""
    return f"file://{tmp_path}/store" if request.param == "file" else request.getfixturevalue("s3_url")


@pytest.fixture
def store(store_url: str) -> Store:
    return Store(store_url)
