"""Messages of clients that do not use our code, generated from the contract's table of fields."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {"string": 9, "int32": 5, "int64": 3}


def messages(fields: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Returns the message classes by name.

    Args:
        fields: by message, each as `repeated string name`, in the order of their numbers; `3 string name` has number 3.
    """
    file = descriptor_pb2.FileDescriptorProto(name="contract.proto", package="contract", syntax="proto3")
    for name, listed in fields.items():
        message = file.message_type.add(name=name)
        for place, words in enumerate(listed, 1):
            *said, kind, field = words.split()
            number = next((int(word) for word in said if word.isdigit()), place)
            of: dict[str, Any] = {"type": _TYPES[kind]} if kind in _TYPES else {"type": 11, "type_name": f".contract.{kind}"}
            message.field.add(name=field, number=number, label=3 if "repeated" in said else 1, json_name=field, **of)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"contract.{name}")) for name in fields}
