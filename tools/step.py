#!/usr/bin/env python3
"""Runs a long command and prints a line at least every ten seconds.

    step.py [--quiet] WHAT COMMAND [ARGUMENT ...]

WHAT says in a few words what the command does. The program prints the output of the command at once. After a while
without output, it prints how long the command has been running. With ``--quiet`` it hides the output, and its lines
show the last count, such as ``[12/240]`` or ``[ 5%]``. If a quiet command fails, the program prints the end of its
output. It exits with the status of the command.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque

SILENCE = 8.0  # maximum seconds without a line
KEPT = 60  # lines printed after a failure of a quiet command
_COUNT = re.compile(r"\[ *\d+(?:/\d+|%)\]")


class Step:
    """A running command. ``output`` has the last lines of a quiet command."""

    def __init__(self, what: str, command: list[str], quiet: bool) -> None:
        self.what, self.quiet = what, quiet
        self.start = self.spoke = time.monotonic()
        self.output: deque[bytes] = deque(maxlen=KEPT)
        self.count = ""
        self.ends_line = True
        self.lock = threading.Lock()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )

    def say(self, text: str) -> None:
        """Prints a line, after the command's unfinished line if there is one."""
        with self.lock:
            print("" if self.ends_line else "\n", f"{self.what}: {text}", sep="", flush=True)
            self.ends_line, self.spoke = True, time.monotonic()

    def seconds(self) -> str:
        return f"{time.monotonic() - self.start:.0f} s"

    def read(self) -> None:
        """Reads the output until the command closes it."""
        assert self.process.stdout is not None
        last = b""
        while data := os.read(self.process.stdout.fileno(), 1 << 16):
            if not self.quiet:
                with self.lock:
                    sys.stdout.buffer.write(data)
                    sys.stdout.buffer.flush()
                    self.ends_line, self.spoke = data.endswith(b"\n"), time.monotonic()
                continue
            *lines, last = (last + data).split(b"\n")
            self.output.extend(lines)
            counts = _COUNT.findall(data.decode(errors="replace"))
            self.count = f" {counts[-1]}" if counts else self.count
        self.output.extend([last] if last else [])

    def run(self) -> int:
        reader = threading.Thread(target=self.read, daemon=True)
        reader.start()
        while reader.is_alive():
            reader.join(0.25)
            if time.monotonic() - self.spoke >= SILENCE:
                self.say(f"still running, {self.seconds()}{self.count}")
        return self.process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs a command and prints a line at least every ten seconds.")
    parser.add_argument("--quiet", action="store_true", help="hide the output, unless the command fails")
    parser.add_argument("what", help="what the command does, in a few words")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    options = parser.parse_args()
    step = Step(options.what, options.command, options.quiet)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command also gets the signal, and ends
    status = step.run()
    if status and options.quiet:
        print(*(line.decode(errors="replace") for line in step.output), sep="\n")
    if status or options.quiet:
        step.say(f"done in {step.seconds()}" if not status else f"failed with status {status} after {step.seconds()}")
    return status if 0 <= status < 256 else 128 + abs(status)


if __name__ == "__main__":
    sys.exit(main())
