"""The replica process: keeps a slot's copies of partitions that other slots lead."""
