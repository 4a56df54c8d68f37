"""The command `appliance`; also `python -m appliance`."""

from __future__ import annotations

from appliance.cli.program import main

if __name__ == "__main__":
    raise SystemExit(main())
