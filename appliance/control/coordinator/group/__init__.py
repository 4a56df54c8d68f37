"""Consumer groups: who belongs to one, in which generation, with which assignment. Pure; see README.md."""
