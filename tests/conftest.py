"""What holds for every test: nothing is recalled from earlier runs unless a test brings a store of its own."""

from __future__ import annotations

import os

os.environ["MUGRAPH_CACHE"] = "off"
