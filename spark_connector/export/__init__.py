"""A topic as Parquet files, each record in exactly one of them; see `ledger` for how."""
