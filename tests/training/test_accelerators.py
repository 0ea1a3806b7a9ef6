"""Differences on a device, as far as they can be tested without one."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from rekindle_training.adapter.own_buffers import OwnBuffers
from rekindle_training.adapter.rehearsal import AT_ONCE, TOLERANCE, _alike, norm_and_sum
from rekindle_training.adapter.state import refuse_other_device
from rekindle_training.launcher import arguments
from rekindle_training.launcher.rank_environment import pod_environment
from tests.training.standalone import Standalone, last_words

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("other_device.py"))
NAN, INFINITY = float("nan"), float("inf")


async def test_a_job_with_another_default_device_is_repaired(alone: Standalone, beside: Standalone) -> None:
    """Objects that the session makes for itself name their device. Kills, errors and a restart end with equal bits."""
    faults = [
        {"fault": "exception", "rank": 0, "step": 4},
        {"fault": "kill", "rank": 1, "step": 6},
        {"fault": "kill", "rank": 0, "step": 8},
    ]
    printed = await alone.run("--spares=1", script=SCRIPT, ranks=2, REKINDLE_INJECT=json.dumps(faults))
    assert len(list((alone.folder / "injected").iterdir())) == len(faults)
    assert printed.count("called at step 8") >= 2
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT, ranks=2))
    assert len(last_words(printed)) == 2


def test_a_model_on_another_device_than_that_of_the_process_is_refused() -> None:
    """The message names the tensor, both devices, and the call that was left out."""
    with FakeTensorMode():
        model = nn.Linear(2, 2, device="cuda:1")
    with pytest.raises(ValueError, match=r"weight is on cuda:1, and the device of this process is cuda:0; .*set_device\(1\)"):
        refuse_other_device(model, torch.device("cuda", 0))
    refuse_other_device(model, torch.device("cuda", 1))
    refuse_other_device(nn.Linear(2, 2), torch.device("cuda", 0))


def test_a_buffer_that_is_missing_here_is_made_on_the_device_that_it_had() -> None:
    """A forward pass leaves a buffer out; the process before had it on the device."""
    model = nn.Module()
    model.register_buffer("seen", torch.ones(2))
    buffers = OwnBuffers({"model": model})
    header, content = buffers.take()
    ((name, dtype, shape, device),) = pickle.loads(header)
    assert device == "cpu"
    model._buffers["seen"] = None
    buffers.put(pickle.dumps([(name, dtype, shape, "meta")]), content)
    seen = model._buffers["seen"]
    assert seen is not None
    assert seen.device.type == "meta"


def test_gradients_that_overflow_in_both_passes_are_alike() -> None:
    """A GradScaler begins with a scale that overflows, and lowers it; one pass that overflows alone is another one."""
    assert _alike((NAN, NAN), (NAN, NAN), 0.0)
    assert _alike((INFINITY, NAN), (INFINITY, NAN), 0.0)
    assert not _alike((INFINITY, NAN), (1.0, 0.5), 0.0)
    assert not _alike((1.0, 0.5), (INFINITY, 0.5), 0.0)


def test_a_gradient_that_is_rounding_only_is_compared_beside_the_largest() -> None:
    """The bias before a BatchNorm has the gradient zero, and on a device another rounding each time."""
    assert _alike((1e-9, 1e-9), (3e-9, -2e-9), 0.1)
    assert not _alike((1.0, 0.5), (1.0 + 3 * TOLERANCE, 0.5), 0.1)
    assert not _alike((1.0, 0.5), (1.0, 0.5 + 3 * TOLERANCE), 0.1)
    assert _alike((1.0, 0.5), (1.0 + TOLERANCE / 2, 0.5), 0.1)


def test_a_gradient_of_several_parts_is_summed_up_whole() -> None:
    """Each element counts in the norm and in the signed sum, also those of the last part; no two signs are the same part's."""
    gradient = torch.randn(AT_ONCE + 7, generator=torch.Generator().manual_seed(3))
    norm, signed = norm_and_sum(gradient)
    assert norm == pytest.approx(float(gradient.norm()), rel=1e-4)
    assert abs(signed) > 0
    gradient[-1] += 100
    assert norm_and_sum(gradient)[0] > norm + 1
    assert abs(norm_and_sum(gradient)[1] - signed) == pytest.approx(100, rel=1e-3)
    assert norm_and_sum(torch.tensor([3j, 4.0]))[0] == pytest.approx(5)


def test_devices_are_counted_without_their_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has loaded it cannot fork ranks which use it."""

    def loaded() -> bool:
        raise AssertionError("the driver was loaded")

    monkeypatch.setattr(torch.cuda, "is_available", loaded)
    assert arguments._devices("auto") >= 1


def test_a_watchdog_does_not_end_a_rank_that_lost_a_neighbour() -> None:
    """The watchdog is turned off, since torch's default ends the process where a collective on the device fails. A value of the
    user is kept."""
    given = arguments.parse(["--standalone", "train.py"], {})
    assert pod_environment(given, 1, 3, {})["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert pod_environment(given, 1, 3, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"})["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
