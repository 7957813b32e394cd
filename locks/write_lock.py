"""Write a lock file from the report of `pip install --dry-run --report FILE`: `make lock`. Names, versions and hashes
alone: where the files came from is left to the configuration of pip."""

import json
import sys
from pathlib import Path

HEADER = "# Every package that CI installs, without torch: see docs/security.md. Written by `make lock`.\n"


def main(report: str, target: str) -> None:
    lines = []
    for entry in json.loads(Path(report).read_text())["install"]:
        about, hashes = entry["metadata"], entry["download_info"]["archive_info"]["hashes"]
        lines.append(f"{about['name']}=={about['version']} \\\n    --hash=sha256:{hashes['sha256']}\n")
    Path(target).write_text(HEADER + "".join(sorted(lines, key=str.lower)))


if __name__ == "__main__":
    main(*sys.argv[1:])
