"""The part of a process's life that is the same for every process. See README.md."""
