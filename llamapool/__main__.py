"""``python -m llamapool``: the same command line as ``llamapool``."""

import sys

from server.cli import main

sys.exit(main())
