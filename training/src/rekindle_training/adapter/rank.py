"""The parts of one rank that its loop, its steps and its membership share. Made by the session."""

from dataclasses import dataclass

from rekindle_training.adapter.communicator import Communicator
from rekindle_training.adapter.data_parallel import DataParallel
from rekindle_training.adapter.legacy import Legacy
from rekindle_training.adapter.trained import Trained
from rekindle_training.environment import RankEnvironment
from rekindle_training.processor.gate import Gate
from rekindle_training.processor.processor import Processor


@dataclass(frozen=True)
class Rank:
    environment: RankEnvironment
    trained: Trained
    wrappers: DataParallel
    communicator: Communicator
    gate: Gate
    processor: Processor
    legacy: Legacy

    @classmethod
    def of(cls, environment: RankEnvironment, trained: Trained, wrappers: DataParallel) -> "Rank":
        communicator, gate = Communicator(environment), Gate()
        processor = Processor(environment, gate, communicator.cut, communicator.begun)
        return cls(environment, trained, wrappers, communicator, gate, processor, Legacy(environment.own_state))
