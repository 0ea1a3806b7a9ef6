"""How the launcher and the manager write their logs: one line an event, its fields behind it as `name=value`."""

import logging

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _Fields(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        return " ".join([super().format(record), *(f"{name}={value}" for name, value in fields.items())])


def configure(program: str) -> None:
    output = logging.StreamHandler()
    output.setFormatter(_Fields(f"%(asctime)s {program} %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[output], force=True)  # a manager may be a fork of the launcher
