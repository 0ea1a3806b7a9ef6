"""Base classes of values. Payloads ignore unknown fields; what people and their programs write is rejected if it has any."""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel


def in_utc(moment: datetime) -> datetime:
    """Returns a moment with its time zone. Python compares no moments of which only one has one."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


Moment = Annotated[datetime, AfterValidator(in_utc)]
"""Moment that another program tells. One without a time zone is taken to be UTC."""


class Value(BaseModel):
    """A payload. Unknown fields are dropped, so that an older worker can read what a newer one wrote."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Asked(Value):
    """Request of a program. An unknown field is an error that names the field, since the caller expected an effect of it."""

    model_config = ConfigDict(extra="forbid")


def sent(value: Value) -> dict[str, Any]:
    """Returns a request as it is sent: without fields that have their default, so that an older worker can read it."""
    return value.model_dump(mode="json", exclude_defaults=True)


class Resource(BaseModel):
    """An object of a cluster. Its fields in JSON are spelled as in Kubernetes (`nodeName`)."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class Written(BaseModel):
    """Configuration that a person writes. An unknown field is an error that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


def no_truth(value: object) -> object:
    """Returns a boolean as the text that was written, and any other value unchanged. YAML reads `yes` as true, which would be one
    second."""
    return f"{value}".lower() if isinstance(value, bool) else value


WrittenTime = Annotated[float | str, BeforeValidator(no_truth)]
"""Seconds, or an ISO 8601 duration."""
