"""The state part of the option table: where stored responses, conversations, files and batches are kept."""

from typing import ClassVar

from server.options.table.option import SettingsModel, option
from server.options.table.values import FilePath, Int


class StateSettings(SettingsModel):
    """Durable state."""

    group: ClassVar[str] = "State"

    state: str = option("auto", "--state", metavar="FILE")
    """SQLite file for stored responses, conversations, files and batches. auto = llamapool/state.sqlite3 in the XDG
    state directory; memory = no file: everything is lost at exit.
    """
    state_quota: Int = option(1024, metavar="MIB", ge=1)
    """MiB that each API key may store; without keys, all clients together. The least recently used responses are
    deleted first.
    """
    state_days: Int = option(30, metavar="DAYS", ge=0)
    """Days after which a stored response is deleted; 0 = never. Conversations and files stay until they are deleted."""
    reasoning_key_file: FilePath | None = option(None)
    """File with a secret on each line, for the reasoning that clients keep in signature and encrypted_content. The
    first one encrypts, all decrypt. Replicas need the same file. none = a secret beside the state file, created at the
    first start; with state memory, a secret that ends with the server."""
