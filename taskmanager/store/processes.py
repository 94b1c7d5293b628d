"""The processes of this host, by name."""

from pathlib import Path


def process_name(pid: int) -> str:
    """Return `process 123 (python report.py)`, or less if the system does not tell its command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        words = []
    line = " ".join(word.decode("utf-8", "replace") for word in words if word)
    return f"process {pid} ({line[:60]})" if line else f"process {pid}"
