"""Options of the web page."""

from typing import Annotated, ClassVar

from server.options.table.option import SettingsModel, option
from server.options.table.values import Bool, FilePath


class PageSettings(SettingsModel):
    """What browsers get."""

    group: ClassVar[str] = "Web page"

    ui: Annotated[Bool, option("--ui", "--webui", env="LLAMA_ARG_UI", off=("--no-ui", "--no-webui"))] = True
    """Serve the web page at / ."""
    ui_mcp_proxy: Annotated[
        Bool,
        option(
            *("--ui-mcp-proxy", "--webui-mcp-proxy"),
            env="LLAMA_ARG_UI_MCP_PROXY",
            off=("--no-ui-mcp-proxy", "--no-webui-mcp-proxy"),
        ),
    ] = False
    """/cors-proxy?url= forwards what the MCP clients of llama-server's page ask, to whatever this machine reaches."""
    path: Annotated[FilePath | None, option("--path", env="LLAMA_ARG_STATIC_PATH", metavar="FOLDER", is_path=True)] = (
        None
    )
    """Folder whose files are served in place of the page. Everybody may read them, also where there are API keys."""
