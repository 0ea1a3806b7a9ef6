"""The gateway: assembles the gRPC server, its streams, and the worker for its orders. Started by `workers.gateway`.

Reports become updates of the job's workflows, stored before they are acknowledged. Orders arrive as activities on this gateway's
own task queue. It keeps no table of jobs: it queries `job/{jobId}`.
"""

import asyncio
from datetime import timedelta

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from temporalio.client import Client
from temporalio.worker import Worker

from activities.training import OrderActivities
from rekindle.errors import Unavailable
from rekindle.ids import gateway_queue
from rekindle.settings import Settings
from rekindle_wire import (
    config_pb2,
    config_pb2_grpc,
    fault_pb2,
    fault_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    profiling_pb2,
    profiling_pb2_grpc,
    pubfault_pb2,
    pubfault_pb2_grpc,
    recover_pb2,
    recover_pb2_grpc,
    training_pb2,
    training_pb2_grpc,
)
from workers.gateway import metrics
from workers.gateway.access import Desk
from workers.gateway.attachments import PATIENCE, ROUND, SHUTDOWN, Attachments
from workers.gateway.caller_auth import Senders
from workers.gateway.config_service import ConfigService
from workers.gateway.cut_off import CutOff
from workers.gateway.fault_service import FaultService
from workers.gateway.job_service import JobService
from workers.gateway.job_workflows import Jobs
from workers.gateway.operations import Operations
from workers.gateway.platforms import Platforms
from workers.gateway.public_fault_service import PublicFaultService
from workers.gateway.recover_service import ProgressService, RecoverService
from workers.gateway.registration_cache import Introductions
from workers.gateway.secondary_streams import SideStreams
from workers.gateway.streams import KEEP_ALIVE, Streams
from workers.gateway.trace_service import TraceService
from workers.gateway.watch import Watch

MAX_STREAMS = 10_000
"""Largest number of jobs attached to one gateway. Source: ClusterD's MaxServeJobs."""

SERVED = (recover_pb2, training_pb2, pubfault_pb2, fault_pb2, job_pb2, config_pb2, profiling_pb2)

GRACE = 3.0
"""Grace period in seconds for calls in flight at shutdown."""

OPTIONS = (
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.max_send_message_length", 8 * 1024 * 1024),
    ("grpc.max_concurrent_streams", 64),
    ("grpc.keepalive_time_ms", 10_000),  # closes connections that froze: clients notice nothing by themselves
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.ping_timeout_ms", 5_000),  # counts for keep-alives too, and is a minute by default
    ("grpc.http2.max_ping_strikes", 0),  # clients ping every 3 s, some faster
    ("grpc.server_handshake_timeout_ms", 5_000),  # a socket that says nothing holds a descriptor for so long, not for a minute
    ("grpc.so_reuseport", 0),  # a port that is taken is an error
)


class Gateway:
    """Server, streams and order worker of one process."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        keep_alive: float = KEEP_ALIVE,
        senders: Senders | None = None,
        offer_again: float = ROUND,
    ) -> None:
        """Args:
        senders: checks who may speak for a job; None: every caller may.
        offer_again: seconds of a round in which each stream is offered again to its job's workflow.
        """
        desk = Desk(senders)
        self._sides = SideStreams(desk)
        self._streams = Streams(MAX_STREAMS, keep_alive, self._sides)
        metrics.expose(lambda: len(self._streams.all()), self._streams.unanswered)
        self._client, self._settings = client, settings
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(options=OPTIONS)
        self._jobs = jobs = Jobs(client)
        queue = gateway_queue(settings.gateway_instance)
        self._introductions = introductions = Introductions(jobs, PATIENCE, self._streams.wanted)
        self._attachments = Attachments(jobs, self._streams, introductions, queue, offer_again)
        operations = Operations(client, settings, self._sides)
        recover = RecoverService(jobs, introductions, self._attachments, operations, desk)
        recover_pb2_grpc.add_RecoverServicer_to_server(recover, self._server)
        training_pb2_grpc.add_ProgressServicer_to_server(
            ProgressService(jobs, introductions, self._attachments, desk), self._server
        )
        self.public_faults = PublicFaultService(operations.platforms)
        pubfault_pb2_grpc.add_PubFaultServicer_to_server(self.public_faults, self._server)
        self._serve_platforms(jobs, introductions, operations.platforms)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        described = [module.DESCRIPTOR.services_by_name.values() for module in SERVED]
        names = [*(service.full_name for of in described for service in of), reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self._server)
        orders = OrderActivities(self._streams)
        self._worker = Worker(
            client,
            task_queue=queue,
            activities=[orders.deliver_order, orders.end_session],
            max_concurrent_activities=1000,
            graceful_shutdown_timeout=timedelta(seconds=1),
        )

    def _serve_platforms(self, jobs: Jobs, introductions: Introductions, platforms: Platforms) -> None:
        """Adds the services with which platforms observe jobs and switch tracing."""
        server, self._watch = self._server, Watch(jobs)
        fault_pb2_grpc.add_FaultServicer_to_server(FaultService(self._watch, platforms), server)
        job_pb2_grpc.add_JobServicer_to_server(JobService(self._watch, platforms), server)
        config_pb2_grpc.add_ConfigServicer_to_server(ConfigService(), server)
        trace = TraceService(self._client, jobs, introductions, self._sides, platforms)
        profiling_pb2_grpc.add_TrainingDataTraceServicer_to_server(trace, server)

    async def start(self) -> int:
        """Starts to serve, and returns the port.

        Raises:
            Unavailable: the port is taken; the message names it.
        """
        host, port = self._settings.gateway_host, self._settings.gateway_port
        try:
            bound = self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError as error:
            raise Unavailable(f"the gateway cannot listen on {host}:{port} (POD_IP, REKINDLE_GATEWAY_PORT): {error}") from error
        await self._introductions.learn()
        await self._server.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        return bound

    async def run_until(self, stop: asyncio.Event) -> None:
        """Carries out orders until `stop` is set; then disconnects the clients and waits for calls in flight."""
        works = [self._streams.keep_alive(), self._attachments.keep_told(), self._watch.keep()]
        if self._settings.gateways > 1:
            works.append(CutOff(self._client, self._streams, self._watch, self._health).watch())
        regularly = [asyncio.create_task(work) for work in works]
        async with self._worker:
            await stop.wait()
            await self._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
            for task in regularly:
                task.cancel()
            self._attachments.stop()
            self._streams.end_all(SHUTDOWN)
            self._sides.end_all(SHUTDOWN)
            self._watch.end_all(SHUTDOWN)
            await self._server.stop(GRACE)
            await self._jobs.settle(GRACE)
