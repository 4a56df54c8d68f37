"""The Spark program of docs/message-audit.md, as it stands there, on the results of an audit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.broker import Appliance
from tests.system.test_message_audit import awaited, consumed, create, produced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE: Final = Path(__file__).parents[2] / "docs" / "message-audit.md"


def test_the_program_of_the_page_adds_up_what_the_audit_counted(tmp_path: Path, spark: SparkSession) -> None:
    (program,) = (
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "spark" in block
    )
    broker = Appliance(tmp_path / "data", settings={"services.processes": 1})
    broker.start()
    try:
        create(broker, "orders")
        produced(broker, "orders", list(range(50)))
        consumed(broker, "orders", 50)
        awaited(broker, "orders", produced=50, group_billing=50)
    finally:
        broker.stop()
    program = program.replace("./data", str(tmp_path / "data"))
    names: dict[str, Any] = {"spark": spark}
    exec(program, names)
    rows = names["buckets"].where("topic = 'orders'").collect()
    sums: dict[str, int] = {}
    for row in rows:
        sums[row["kind"]] = sums.get(row["kind"], 0) + row["records"]
    assert sums == {"produced": 50, "committed": 50}
    delays = names["entries"].where("kind = 'committed'").select("delay").first()
    assert sum(delays["delay"].values()) == 50
