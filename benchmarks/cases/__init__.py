"""The workloads. Their order is that of a round: the idle broker first, the heavy streams last."""

from benchmarks.cases import (
    access,
    backup,
    delayed,
    fairness,
    footprint,
    groups,
    lanes,
    many,
    observed,
    one_record,
    python_clients,
    replicas,
    scaling,
    throughput,
    transactions,
)
from benchmarks.cases.case import Case

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *footprint.CASES,
        *many.CASES,
        *one_record.CASES,
        *python_clients.CASES,
        *groups.CASES,
        *lanes.CASES,
        *access.CASES,
        *transactions.CASES,
        *delayed.CASES,
        *observed.CASES,
        *backup.CASES,
        *replicas.CASES,
        *throughput.CASES,
        *scaling.CASES,
        *fairness.CASES,
    )
}
