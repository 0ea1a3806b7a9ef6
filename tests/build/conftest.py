"""The wheels are built and installed when everything else has been told: it takes longest and says least about why."""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("wheel") is not None)
