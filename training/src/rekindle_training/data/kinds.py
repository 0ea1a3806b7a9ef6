"""Kinds of loaders: how each gives its batches again, and what to write where one cannot."""

import sys
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, Sampler

from rekindle_training.data.indexed import Indexed
from rekindle_training.data.nodes import Graph
from rekindle_training.data.prepared import Prepared
from rekindle_training.data.resumed import Resumed
from rekindle_training.data.stateful import Keeping
from rekindle_training.data.streamed import Streamed

_THEIRS = ("accelerate.", "torch.", "torchdata.")


class Source(Protocol):
    """Source of batches: any batch of any epoch of one kind of loader."""

    KEYS: frozenset[str]
    """Keys of its state."""

    def __len__(self) -> int: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], epoch: int, number: int, /) -> None: ...

    def draw(self, epoch: int, number: int) -> Any:
        """Raises StopIteration at the end of the epoch."""


def refuse_raw(data: object) -> None:
    """Raises TypeError where a session is given a loader or a sampler itself. Its position is ahead of training."""
    nodes = _loaded("torchdata.nodes")
    is_loader = isinstance(data, DataLoader) or (nodes and isinstance(data, (nodes.Loader, nodes.BaseNode)))
    if is_loader or (isinstance(data, Sampler) and type(data).__module__.startswith(_THEIRS)):
        whose = "" if is_loader else ", with the loader that has this sampler"
        raise TypeError(
            f"session(data): {type(data).__name__} is not accepted, since its position is that of what loads ahead; write "
            f"batches = rekindle_training.batches(loader){whose}, then session(data=batches), and next(batches) in the loop"
        )


def source(loader: Any) -> Source:
    """Returns what gives the batches of this loader.

    Raises:
        TypeError: they cannot be drawn again.
    """
    accelerate: Any = _loaded("accelerate.data_loader")
    if accelerate and isinstance(loader, accelerate.DataLoaderAdapter):
        return _of_accelerate(loader, accelerate)
    if isinstance(loader, DataLoader):
        return _of_torch(loader)
    nodes: Any = _loaded("torchdata.nodes")
    if nodes and isinstance(loader, nodes.BaseNode):
        loader = nodes.Loader(loader)
    if nodes and isinstance(loader, nodes.Loader):
        return Graph(loader, nodes)
    if _has_state(loader) and (hasattr(loader, "__iter__") or hasattr(loader, "__next__")):
        return Keeping(loader)
    if found := _wrapped(loader):
        raise _refused(
            loader,
            f"it wraps a DataLoader, and what it does with each batch is not known; give the DataLoader itself, as "
            f"in rekindle_training.batches(loader.{found}), and do that in the loop, such as fabric.to_device(batch)",
        )
    raise _refused(
        loader,
        "accepted are a DataLoader, a StatefulDataLoader or nodes of torchdata, a loader that accelerate has prepared, and what "
        "can be iterated and has state_dict and load_state_dict",
    )


def _of_torch(loader: DataLoader[Any]) -> Source:
    if isinstance(loader.dataset, IterDataPipe):
        raise _refused(
            loader.dataset,
            "a DataPipe talks to other ranks when an epoch begins, where a replacement would be alone; give a Dataset",
        )
    if loader.num_workers and not getattr(loader, "in_order", True):
        raise _refused(loader, "with in_order=False batches come in another order each time; leave it out")
    has_state = _has_state(loader)
    if not _iterates_as_torchs(loader):
        if has_state:
            return Keeping(loader)
        raise _refused(
            loader, "it has an __iter__ of its own; give a plain DataLoader, and do in the loop what is done with each batch"
        )
    if isinstance(loader.dataset, IterableDataset):
        return Resumed(loader, _loaded("torchdata.stateful_dataloader").StatefulDataLoader) if has_state else Streamed(loader)
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    parts = (loader.dataset, sampler, getattr(sampler, "sampler", None))
    if has_state and any(_has_state(part) and not type(part).__module__.startswith(_THEIRS) for part in parts):
        return Keeping(loader)
    return Indexed(loader)


def _of_accelerate(loader: Any, accelerate: Any) -> Source:
    if not isinstance(loader, accelerate.DataLoaderShard):
        raise _refused(
            loader,
            "rank 0 would load for all ranks, or batches would be left out by it; write "
            "Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False)), and leave out skip_first_batches",
        )
    if loader.skip_batches or loader.rng_types:
        raise _refused(
            loader,
            "its ranks make their random numbers alike when an epoch begins, where a replacement would be alone; write "
            "Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)), without rng_types",
        )
    found = _of_torch(loader.base_dataloader)
    if not isinstance(found, Indexed):
        raise _refused(loader, "its dataset has no indices; give the loader itself, not prepared")
    return Prepared(loader, found, accelerate.send_to_device)


def _wrapped(loader: object) -> str:
    """Returns the attribute in which a wrapper, such as that of Lightning Fabric, has its DataLoader; empty: it has none."""
    return next((name for name, held in getattr(loader, "__dict__", {}).items() if isinstance(held, DataLoader)), "")


def _loaded(module: str) -> Any:
    """Returns a module if it is imported. One that is not has made no loader."""
    return sys.modules.get(module)


def _has_state(thing: object) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def _iterates_as_torchs(loader: DataLoader[Any]) -> bool:
    stateful = _loaded("torchdata.stateful_dataloader")
    kinds: list[Any] = [DataLoader, *([stateful.StatefulDataLoader] if stateful else [])]
    return any(type(loader).__iter__ is kind.__iter__ for kind in kinds)


def _refused(thing: object, why: str) -> TypeError:
    return TypeError(f"batches(loader): {type(thing).__name__} is not accepted: {why}")
