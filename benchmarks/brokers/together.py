"""Several programs as one: started together, ready once all of them are, ended together.

    python -m benchmarks.brokers.together READY_WORD FILE.json

FILE.json holds a list of commands. Their lines are passed on with their number before them; when each has said
READY_WORD, "ready" is said. SIGTERM goes to all; the end of one is the end of none of the others.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO


def main() -> int:
    """Returns when all have been ended."""
    ready_word, file = sys.argv[1:]
    commands = json.loads(Path(file).read_text())
    ready = threading.Barrier(len(commands), action=lambda: print("ready", flush=True))

    def run(number: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            commands[number], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        threading.Thread(target=pass_on, args=(number, process.stdout), daemon=True).start()
        return process

    def pass_on(number: int, stream: IO[str]) -> None:
        waits = True
        for line in stream:
            print(f"{number}: {line}", end="", flush=True)
            if waits and ready_word in line:
                waits = False
                threading.Thread(target=ready.wait, daemon=True).start()

    running = [run(number) for number in range(len(commands))]

    def end(*_: object) -> None:
        for process in running:
            process.terminate()

    def start_again(*_: object) -> None:
        for number, process in enumerate(running):
            if process.poll() is not None:
                running[number] = run(number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, start_again)
    while any(process.poll() is None for process in running):
        time.sleep(0.05)
    return max(abs(process.wait()) for process in running)


if __name__ == "__main__":
    sys.exit(main())
