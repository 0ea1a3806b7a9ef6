"""Settings of every gRPC connection of the training side; used by the manager, the launcher and the ranks' processors."""

import logging
import threading
from collections.abc import Sequence

log = logging.getLogger(__name__)

SILENT_SECONDS = 5.0
"""Seconds without an answer from a manager after which the address that is tried is logged."""

Options = Sequence[tuple[str, int]]

LARGEST_MESSAGE = 64 * 1024 * 1024
LARGEST_OWN = LARGEST_MESSAGE - 1024 * 1024
"""Maximum size in bytes of a rank's own state, which goes through the manager in one message."""

CLIENT: Options = (
    # A frozen or cut connection is noticed within 5 s, and a peer that is back is met again within a second.
    ("grpc.keepalive_time_ms", 3000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
)

SERVER: Options = (
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    # Two managers on one port would share the ranks between them.
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
)


class Silence:
    """Logs the address that is tried, once for each period in which the manager does not answer for some seconds."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """Starts the timer. Called before each stream is opened."""
        if self._timer is None:
            self._timer = threading.Timer(SILENT_SECONDS, self._say)
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        """Stops the timer. Called when the first message has been sent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _say(self) -> None:
        log.warning("manager not reached, waiting for it", extra={"address": self._address})
