"""Handles search attributes that the server lacks or has with another type, for example because an operator removed one.

They are for people, but the server fails each workflow task that names a missing one, which would stop a recovery. So they are
removed from the commands of workflows, and registered again. Used by the plugin of `rekindle.temporal` and by the control worker.
"""

from collections.abc import Iterable
from typing import Any

from temporalio.api.common.v1 import Payload, SearchAttributes
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

NOTHING = "BatcherUser"
"""Attribute that every server has, and that is empty in our workflows.

A change of attributes must change at least one, as the history has an event for it that replay must find again.
"""


class Absent:
    """Names of missing attributes in this process, which works for one namespace. They are not part of any history."""

    names: frozenset[str] = frozenset()


ABSENT = Absent()


class Leaving(WorkflowRunner):
    """Workflow runner that delegates to another one, and removes missing attributes from its commands."""

    def __init__(self, runner: WorkflowRunner) -> None:
        self._runner = runner

    def prepare_workflow(self, defn: Any) -> None:
        self._runner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _Instance(self._runner.create_instance(det))

    def set_worker_level_failure_exception_types(self, types: Any) -> None:
        self._runner.set_worker_level_failure_exception_types(types)


class _Instance(WorkflowInstance):
    def __init__(self, instance: WorkflowInstance) -> None:
        self._instance = instance

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        completion = self._instance.activate(act)
        if ABSENT.names:
            leave_out(completion, ABSENT.names)
        return completion

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Any:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()


def leave_out(completion: WorkflowActivationCompletion, names: Iterable[str]) -> None:
    """Removes these attributes from the commands of a task.

    The workflow does not notice it, so its decisions do not depend on the server. Replay still works, since the attributes of
    these commands are not compared.
    """
    for command in completion.successful.commands:
        if command.HasField("upsert_workflow_search_attributes"):
            told = command.upsert_workflow_search_attributes.search_attributes
            _remove(told, names)
            if not told.indexed_fields:
                told.indexed_fields[NOTHING].CopyFrom(Payload(metadata={"encoding": b"binary/null", "type": b"Keyword"}))
        elif command.HasField("start_child_workflow_execution"):
            _remove(command.start_child_workflow_execution.search_attributes, names)
        elif command.HasField("continue_as_new_workflow_execution"):
            _remove(command.continue_as_new_workflow_execution.search_attributes, names)


def _remove(told: SearchAttributes, names: Iterable[str]) -> None:
    for name in names:
        told.indexed_fields.pop(name, None)
