"""A real S3 server (moto's) and a proxy before it, one of each for all tests of this process.

Clients of s3fs are kept by their settings, and making one takes a second: so endpoints do not change from test to test.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache

import boto3
from moto.server import ThreadedMotoServer

from tests.store.fault_proxy import FaultProxy, fault_proxy

BUCKET = "lake"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
_open = ExitStack()


@cache
def s3_server() -> str:
    """The endpoint of a server that has a bucket. It ends with the process."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=endpoint, **keys).create_bucket(Bucket=BUCKET)
    return endpoint


@cache
def s3_proxy() -> FaultProxy:
    """What stands before it. Whoever uses it heals it afterwards."""
    return _open.enter_context(fault_proxy(s3_server()))
