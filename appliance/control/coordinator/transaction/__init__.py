"""Transactions: a pure state machine per transactional id, and the records of `__transaction_state`."""
