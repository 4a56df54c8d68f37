"""The version of the appliance, which is the distribution's."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
