"""A worker's folders of versions, as others on its machine meet them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from seamlessflow.contracts import WeightsHead
from seamlessflow.store.large_payloads import Store
from seamlessflow_rollout_worker.weights.local_versions import LocalVersions
from tests.store.weights_line import LINE, RUN, publish


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_who_may_read_a_version_is_for_the_umask_to_say(tmp_path: Path, umask: int) -> None:
    """Engine servers of another user load from its folder; a temporary folder's mode would keep them out."""
    store, before = Store(f"file://{tmp_path}/store"), os.umask(umask)
    try:
        path = publish(store, 0, LINE[0], None, is_full=True)
        head = WeightsHead(weights_version=0, step=0, path=path, epoch=0)
        fetched = LocalVersions(store, RUN, tmp_path / "work").fetch(head)
    finally:
        os.umask(before)

    assert stat.S_IMODE(fetched.folder.stat().st_mode) == 0o777 & ~umask
    assert stat.S_IMODE(fetched.weights_file.stat().st_mode) == 0o444 & ~umask
