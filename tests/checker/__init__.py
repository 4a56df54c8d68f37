"""Looks for lost, duplicated, reordered, unseen and diverging records while processes die: see README.md."""
