"""Search attributes of a workflow for the list of workflows. Each is written when it changes, as an event of the history."""

from collections.abc import Mapping
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

Values = Mapping[SearchAttributeKey[Any], Any]


class Shown:
    def __init__(self, told: Values) -> None:
        """Args:
        told: the values that were written before this run, computed by a rule. The server is not asked: an attribute that an
            operator removes is removed from the history of the run, too.
        """
        self._told = dict(told)

    def tell(self, row: Values) -> None:
        changes = [key.value_set(value) for key, value in row.items() if self._told.get(key) != value]
        if changes:
            workflow.upsert_search_attributes(changes)
            self._told.update(row)

    def again(self) -> None:
        """Writes all attributes again, as the server has lost some."""
        if self._told:
            workflow.upsert_search_attributes([key.value_set(value) for key, value in self._told.items()])
