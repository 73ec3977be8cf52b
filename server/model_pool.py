"""Builds the pool of models from the settings.

`serve` imports this before the HTTP application, so that models load while the application is imported and built.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from server.hub.hub import HubFetcher
from server.pool.events import Subscription
from server.pool.loading import Factories, chat_template
from server.pool.model import compile_grammars
from server.pool.pool import Pool
from server.pool.protocols import Loader
from server.pool.scheduler import PoolLimits
from server.pool.spec import ModelSpec
from server.settings import Settings, check_files, model_specs
from server.structured.grammar.sandbox import Sandbox

if TYPE_CHECKING:
    from server.templates.isolated import IsolatedRenderer  # not on every system

logger = logging.getLogger(__name__)

LINGER_S = 2.0  # what llama-server's variable for its tests does (server-models.cpp, debug_fake_timing)


@dataclass(frozen=True, slots=True)
class ModelPool:
    """A pool and the sandbox processes of its models. ``events`` and ``progress``: all events since the pool exists."""

    pool: Pool
    events: Subscription
    progress: Subscription
    renderer: "IsolatedRenderer | None"
    sandbox: Sandbox | None

    def close_sandboxes(self) -> None:
        for each in (self.sandbox, self.renderer):
            if each is not None:
                each.close()


def open_pool(
    settings: Settings,
    *,
    loader: Loader | None = None,
    reread: Callable[[], Settings] | None = None,
    in_process: Callable[[], Loader] | None = None,
    sandbox: Sandbox | None = None,
) -> ModelPool:
    """Return the pool; it loads nothing before `Pool.start`. Parameters as for `server.app.create_app`. Raises
    `ConfigError`.
    """
    server = settings.server
    limits = PoolLimits(
        models_max=server.models_max,
        autoload=server.models_autoload,
        budget=server.budget,
        wait_s=server.models_wait_s,
        linger_s=LINGER_S if os.environ.get("LLAMA_SERVER_DEBUG_FAKE_TIMING") else 0.0,
    )
    specs = model_specs(settings)
    renderer = None
    if loader is None:
        from server.templates.isolated import IsolatedRenderer

        renderer = IsolatedRenderer()
        if any(spec.load == "startup" for spec in specs):
            renderer.warm()  # its process starts while the library is imported
        in_process = loader_factory(tuple(server.rpc))
        loader = in_process()
    sandbox = sandbox or Sandbox()
    factories = Factories(
        template=partial(chat_template, renderer=renderer),
        grammar=partial(compile_grammars, sandbox=sandbox),
    )
    pool = Pool(
        specs,
        loader,
        limits,
        factories=factories,
        in_process=in_process or type(loader),
        fetcher=HubFetcher(settings.hub),
        reread=None if reread is None else lambda: checked_models(reread()),
        downloads=settings.serves_cache,
    )
    return ModelPool(pool, pool.subscribe(), pool.subscribe(), renderer, sandbox)


def checked_models(settings: Settings) -> list[ModelSpec]:
    """Return the models of settings that were read again. Logs problems of single files. Raises `ConfigError`."""
    for warning in check_files(settings):
        logger.warning("%s", warning)
    return model_specs(settings)


def loader_factory(remote: tuple[str, ...] = ()) -> Callable[[], Loader]:
    """Return what opens llama.cpp's loader with the devices of the `remote` machines. It can be pickled, and raises
    ConfigError.

    Imports the native library, which an application over another loader does not need.
    """
    from server.llama.loader import open_loader

    return partial(open_loader, remote)
