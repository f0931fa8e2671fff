"""The files that the tests of the loader on several ranks read."""

import histories
import pytest
from sets import two_sources


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    two_sources(folder)
    return folder


@pytest.fixture(scope="module")
def history_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("histories")
    histories.write(folder)
    return folder
