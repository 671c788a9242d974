"""Tests of workloads have a cache folder of their own and compute on one thread, as ranks do."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from single_thread import one_thread as one_thread


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
