"""Runs `python -m headway` as `headway`."""

import sys

from headway.cli import main

sys.exit(main())
