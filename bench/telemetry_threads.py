# Runs a command and prints, as JSON, the processors' time in seconds of the threads of one program
# by their names. No other process of this program may run meanwhile.
import json
import os
import subprocess
import sys
import time
from collections import defaultdict

INTERVAL_SECONDS = 0.05
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def command_name(pid):
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def threads(pid):
    """Id, name and processors' time in seconds of each thread of a process."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat") as file:
            name, numbers = file.read().split("(", 1)[1].rsplit(")", 1)
        fields = numbers.split()
        yield thread, name, (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def look(program, times):
    """Notes what all processes of a program have spent by now."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if command_name(pid) == program:
                for thread, name, seconds in threads(pid):
                    times[pid, thread] = (name, seconds)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended meanwhile


def main():
    program, *command = sys.argv[1:]
    times = {}
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while running.poll() is None:
        look(program, times)
        time.sleep(INTERVAL_SECONDS)
    seconds = defaultdict(float)
    for name, spent in times.values():
        seconds[name] += spent
    print(json.dumps(seconds))
    sys.exit(running.returncode)


main()
