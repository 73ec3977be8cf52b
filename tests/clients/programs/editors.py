"""Editors that fill in the middle. They are no packages of a registry: `loops/fim_editors.py` sends what they send."""

from tests.clients.programs.libraries import COMMON, library
from tests.clients.programs.program import says
from tests.clients.programs.scripted_model import Line

FIM = """\
" llama.vim
let g:llama_config = {'endpoint_fim': '{url}/infill', 'endpoint_inst': '{url}/v1/chat/completions'}
" llama.vscode: "llama-vscode.endpoint": "{url}"
" Continue: provider: llama.cpp, apiBase: {url}
"""
LINES = [*COMMON, Line("FILL-PLEASE", says("answer = 42"), plain=True)]
EDITORS = (library("FIM editors", "as of 2026-11", "", "agents", FIM, "fim_editors", LINES),)
