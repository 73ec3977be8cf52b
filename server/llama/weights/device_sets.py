"""Weights for each set of devices: instances on the same devices share them, others get a copy where they compute."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from server.engine.runner_api import EmbeddingRunner, Runner
from server.pool.memory import Footprint, added
from server.pool.protocols import MediaReader, ModelInfo, Weights
from server.pool.spec import ModelSpec
from server.vocab import Vocab

OnProgress = Callable[[float], bool]
LoadOne = Callable[[ModelSpec, OnProgress, Weights | None], Weights]


def load_by_devices(spec: ModelSpec, load_one: LoadOne, progress: OnProgress) -> Weights:
    """Load once per distinct set of ``spec.native.devices``. `load_one` gets a specification with one set. Loads run
    one after the other and report equal shares of the progress. Raises what a load raises, after freeing earlier
    loads.
    """
    wanted = spec.native.devices
    distinct = list(dict.fromkeys(wanted))
    with contextlib.ExitStack() as undo:
        loaded: list[Weights] = []
        for i, devices in enumerate(distinct):
            one = replace(spec, native=replace(spec.native, devices=(devices,)))
            loaded.append(load_one(one, _share(progress, i, len(distinct)), loaded[0] if loaded else None))
            undo.callback(loaded[-1].close)
        undo.pop_all()
    return loaded[0] if len(loaded) == 1 else WeightsByInstance(loaded, [distinct.index(some) for some in wanted])


def _share(progress: OnProgress, part: int, n_parts: int) -> OnProgress:
    return lambda fraction: progress((part + fraction) / n_parts)


class WeightsByInstance:
    """`server.pool.protocols.Weights` over several loads of one file. ``places`` maps instances to loads. Facts and
    vocabulary are equal in all; those of the first are shown.
    """

    def __init__(self, loaded: Sequence[Weights], places: Sequence[int]) -> None:
        self._loaded = loaded
        self._places = places
        self._n_runners = self._n_embedders = 0

    @property
    def info(self) -> ModelInfo:
        """The model."""
        return self._loaded[0].info

    @property
    def vocab(self) -> Vocab:
        """Its vocabulary."""
        return self._loaded[0].vocab

    @property
    def media(self) -> MediaReader | None:
        """The projector, of which there is one."""
        return self._loaded[0].media

    def runner(self) -> Runner:
        """The next instance's context, over the weights on its devices; blocking. Raises `ModelFailed`."""
        runner = self._of_instance(self._n_runners).runner()
        self._n_runners += 1
        return runner

    def embedding_runner(self) -> EmbeddingRunner:
        """Return a context that embeds, like `runner`."""
        runner = self._of_instance(self._n_embedders).embedding_runner()
        self._n_embedders += 1
        return runner

    def _of_instance(self, instance: int) -> Weights:
        return self._loaded[self._places[instance % len(self._places)]]

    def footprint(self) -> Footprint:
        """Return the footprint of all sets."""
        return added(weights.footprint() for weights in self._loaded)

    def close(self) -> None:
        """Free all of them; every runner must be closed before."""
        with contextlib.ExitStack() as stack:
            for weights in self._loaded:
                stack.callback(weights.close)
