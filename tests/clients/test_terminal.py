"""What people see who start it on a terminal: bars while a model is downloaded or loaded, then the first screen."""

import re
import signal
import sys
import threading
from pathlib import Path

from tests.support.real_server import ROOT, free_port
from tests.support.stand_in_hub import stand_in_hub
from tests.support.terminal import Terminal

COMMAND = (sys.executable, "-m", "server")
STAMP = re.compile(r"\d\d:\d\d:\d\d")


def test_a_load_has_a_bar_and_then_the_first_screen_stands_there_alone() -> None:
    flags = ("-m", str(ROOT / "models" / "demo.gguf"), "--alias", "demo", "--port", str(free_port()))
    with Terminal((*COMMAND, *flags)) as terminal:
        terminal.wait_for("  try ")
        terminal.wait_for('"Hello!"')
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.status() == 0
    shown = terminal.shown
    drawn = [int(percent) for percent in re.findall(r"\rloading demo: +(\d+)%\|", shown)]
    assert drawn[0] == 0, "the bar begins"
    assert drawn == sorted(drawn)  # how many steps are drawn depends on the machine: newer events replace older ones
    screen = shown[shown.index("Llamapool ") : shown.index('"Hello!"')]
    assert not STAMP.search(screen), "lines of the first screen have no time"
    assert [line.split()[0] for line in screen.splitlines()[1:] if line.startswith("  ") and line[2] != " "] == [
        *("demo", "memory", "pages", "try")
    ]


def test_a_download_has_a_bar_that_moves(tmp_path: Path) -> None:
    model = b"GGUF" + bytes(3_000_000)
    with stand_in_hub({"org/model": {"m-Q8_0.gguf": model}}) as hub:
        hub.hold = threading.Event()
        environment = {"LLAMA_CACHE": str(tmp_path), "MODEL_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
        with Terminal((*COMMAND, "pull", "org/model:Q8_0"), environment) as terminal:
            terminal.wait_for("/3.00M [")
            hub.hold.set()
            assert terminal.status() == 0
    drawn = [int(percent) for percent in re.findall(r"\rorg/model:Q8_0: +(\d+)%\|", terminal.shown)]
    assert drawn == sorted(drawn)
    assert drawn[0] < 60
    assert drawn[-1] == 100
    assert "fetching" not in terminal.shown, "lines are for what is no terminal"
    assert terminal.shown.splitlines()[-1].startswith("org/model:Q8_0: ")
