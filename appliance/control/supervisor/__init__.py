"""The process that keeps all others: forks them, restarts them, stops them, and talks to systemd."""
