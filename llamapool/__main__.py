"""``python -m llamapool``: the command line, as ``llamapool``."""

import sys

from server.cli import main

sys.exit(main())
