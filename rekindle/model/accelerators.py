"""Names of extended resources that are accelerators. Network devices and the like have names of the same form. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from rekindle.model.rules import is_like

KNOWN = (
    *("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*", "amd.com/gpu", "gpu.intel.com/*", "habana.ai/gaudi"),
    *("huawei.com/Ascend*", "huawei.com/npu", "google.com/tpu", "cloud-tpus.google.com/*"),
    *("aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "aws.amazon.com/neurondevice"),
    *("cambricon.com/*mlu*", "hygon.com/dcu", "enflame.com/gcu", "iluvatar.com/gpu", "iluvatar.ai/gpu", "metax-tech.com/gpu"),
    *("mthreads.com/gpu", "birentech.com/gpu", "kunlunxin.com/xpu", "tenstorrent.com/*", "furiosa.ai/*", "rebellions.ai/*"),
)
"""Names as device plugins publish them; `*` stands for anything."""

AWS = "aws.amazon.com/"


def is_known(resource: str) -> bool:
    """Returns whether a resource of this name is an accelerator, as device plugins publish them."""
    return any(is_like(resource, pattern) for pattern in KNOWN)


def count(amounts: Mapping[str, Any], is_accelerator: Callable[[str], bool] = is_known) -> int:
    """Returns how many accelerators are among these amounts of resources, by name. AWS gives the same device three names."""
    counts = {name: int(amount) for name, amount in amounts.items() if is_accelerator(name) and str(amount).isdecimal()}
    of_aws = [amount for name, amount in counts.items() if name.startswith(AWS)]
    return sum(amount for name, amount in counts.items() if not name.startswith(AWS)) + max(of_aws, default=0)
