"""The command line: one program, each command in a file of its own, imported when it is asked for."""
