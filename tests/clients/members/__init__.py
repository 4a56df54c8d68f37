"""Members of groups as programs: `python -m tests.clients.members.NAME` with ADDRESS GROUP TOPIC CLIENT_ID PROTOCOL
SESSION_MS.

Each prints a line `partition offset` for every record it has processed, then commits, and leaves its group at SIGTERM.
They are processes so that a test can kill and pause them.
"""
