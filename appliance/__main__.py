"""The command `appliance`; also `python -m appliance`."""

from __future__ import annotations

import appliance.started_by  # noqa: F401 (reads the parent before the rest is loaded)

# isort: split
from appliance.cli.program import main

if __name__ == "__main__":
    raise SystemExit(main())
