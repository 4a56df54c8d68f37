"""The I/O worker: owns the leader partitions of its slot."""
