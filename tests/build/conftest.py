"""The wheels are built and installed after all other tests: it takes longest, and its failures explain least."""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("wheel") is not None)
