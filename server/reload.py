"""Reloads keys, certificates and models while the server runs: at SIGHUP, or when their files change.

Everything is read and checked first. If something is wrong, the log says so and nothing changes. New keys apply at once
(running requests continue), certificates to new connections. Models are reloaded as by ``GET /models?reload=1``:
those that were removed or changed are unloaded, the others continue.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from server.errors import ConfigError, LlamapoolError
from server.model_pool import checked_models
from server.options.server import ServerSettings
from server.pool.pool import Pool
from server.pool.spec import ModelSpec, stamps
from server.settings import Settings
from server.transport.keys import Key, KeyStore, plain_key, read_keys
from server.uvicorn_config import certificate_of, use_certificate

logger = logging.getLogger(__name__)

EVERY_S = 1.0
"""Seconds between two polls of the files."""
_APPLIED = {
    *("api_keys", "api_key_file", "keys_file", "ssl_key_file", "ssl_cert_file"),
    *("models_dir", "models_preset", "watch_config"),
}


def read_all_keys(server: ServerSettings) -> list[Key]:
    """Return every key that is configured. Raises ConfigError when a file of keys can't be read."""
    from_file = () if server.keys_file is None else read_keys(server.keys_file)
    return [*map(plain_key, server.all_api_keys()), *from_file]


def _key_files(server: ServerSettings) -> list[Path]:
    return [path for path in (server.api_key_file, server.keys_file) if path]


class Reload:
    """The server's ``keys``, and changes of the running server. Used on the event loop. `reread` returns the current
    settings; None = as before. Raises ConfigError when a file of keys can't be read.
    """

    def __init__(self, settings: Settings, pool: Pool, reread: Callable[[], Settings] | None = None) -> None:
        server, files = settings.server, _key_files(settings.server)
        self._settings, self._pool, self._reread = settings, pool, reread
        self._at_start: dict[Path, object] = dict(zip(files, stamps(files), strict=True))  # before they are read
        self.keys = KeyStore(read_all_keys(server), required=bool(server.api_keys or files))
        self._reading = asyncio.Lock()  # what was read is applied before anything is read again
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        task = asyncio.create_task(self.all(), name="reload")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def all(self) -> None:
        """Reload everything. Logs what is wrong."""
        async with self._pool.reloading:
            try:
                async with self._reading:
                    settings, keys, models, certificate = await asyncio.to_thread(self._checked)
                    self._apply(settings, keys)
                    if certificate is not None:
                        use_certificate(certificate)
            except LlamapoolError as error:
                logger.error("nothing was reloaded: %s", error.message)
                return
            await self._pool.reload(models)
            logger.info("reloaded: %d keys, %d models", len(self.keys), len(self._pool.states()))

    def _checked(self) -> tuple[Settings, list[Key], list[ModelSpec], ssl.SSLContext | None]:
        """Read everything and change nothing. Raises ConfigError for anything that could not be used."""
        settings = self._settings if self._reread is None else self._reread()
        models = checked_models(settings)
        certificate = certificate_of(settings.server)
        if (certificate is None) != (certificate_of(self._settings.server) is None):
            raise ConfigError("server.ssl_cert_file: TLS begins and ends with a start of the server")
        return settings, read_all_keys(settings.server), models, None if certificate is None else certificate.read()

    def _apply(self, settings: Settings, keys: list[Key]) -> None:
        before, now = self._settings.server, settings.server
        self.keys.replace(keys)
        changed = [key for key in type(now).model_fields if getattr(before, key) != getattr(now, key)]
        later = [key for key in changed if key not in _APPLIED]
        if later:
            logger.warning("what changed in server.%s counts from the next start", ", server.".join(later))
        if keys and not self.keys.required:
            logger.warning("the server was started without keys, and stays open to all until the next start")
        self._settings = settings

    # ---- files

    async def follow(self) -> None:
        """Follow the files of keys and certificates, and with ``watch_config`` the configuration: those of the settings
        that were read last. Those that the last reload named may have changed since they were read, so they are read
        again. Endless.

        Files are polled: links, mounted folders and ConfigMaps send no notification of a change.
        """
        before: dict[Path, object] | None = None
        while True:
            server, certificate = self._settings.server, certificate_of(self._settings.server)
            keys = set(_key_files(server))
            files = set(certificate.files) if certificate is not None else set()
            watched = (self._settings.config_path, server.models_preset) if server.watch_config else ()
            config = {path for path in watched if path}
            paths = [*keys, *files, *config]
            now: dict[Path, object] = dict(zip(paths, await asyncio.to_thread(stamps, paths), strict=True))
            known = now | self._at_start if before is None else before
            changed = {path for path, _ in now.items() - known.items()}
            if changed & keys:
                await self._keys_again()
            if changed & files:
                await self._certificate_again()
            if changed & config:
                self.begin()
            before = now
            await asyncio.sleep(EVERY_S)

    async def _keys_again(self) -> None:
        try:
            async with self._reading:
                self.keys.replace(await asyncio.to_thread(read_all_keys, self._settings.server))
        except ConfigError as error:
            logger.error("the API keys are as they were: %s", error.message)
            return
        logger.info("the API keys were read again: there are %d", len(self.keys))

    async def _certificate_again(self) -> None:
        try:
            async with self._reading:
                if (certificate := certificate_of(self._settings.server)) is not None:
                    use_certificate(await asyncio.to_thread(certificate.read))
        except ConfigError as error:
            logger.error("the certificate is as it was: %s", error.message)
            return
        logger.info("the certificate was read again")
