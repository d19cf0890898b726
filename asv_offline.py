"""Makes the pages that `asv publish` writes whole: they need no network and no other host.

asv's pages load their scripts from content delivery networks. `python asv_offline.py` fetches the same versions from the npm registry
once, into .asv/www; as a plugin (asv.conf.json) this file then copies them into every published dashboard. Where they were never
fetched the pages keep asv's addresses, but for the one script that we replace: benchmarks/side_by_side.js says why.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from asv.console import log
from asv.publishing import OutputPublisher

ROOT = Path(__file__).resolve().parent
FETCHED = ROOT / ".asv" / "www"
PACKAGES = ("jquery@3.3.1", "flot@0.8.3", "bootstrap@3.1.1", "stupid-table-plugin@1.1.3", "blueimp-md5@2.19.0")
# What asv 0.6.6 asks a CDN for -> where the package has it. flot's packages hold no minified files.
FILES = {
    "jquery-3.3.1.min.js": "jquery/dist/jquery.min.js",
    "jquery.flot.min.js": "flot/jquery.flot.js",
    "jquery.flot.time.min.js": "flot/jquery.flot.time.js",
    "jquery.flot.selection.min.js": "flot/jquery.flot.selection.js",
    "jquery.flot.categories.min.js": "flot/jquery.flot.categories.js",
    "stupidtable.min.js": "stupid-table-plugin/stupidtable.min.js",
    "md5.min.js": "blueimp-md5/js/md5.min.js",
    "bootstrap.min.js": "bootstrap/dist/js/bootstrap.min.js",
    "bootstrap.min.css": "bootstrap/dist/css/bootstrap.min.css",
}
PATIENCE_S = 120.0  # a few hundred kilobytes; where a network takes packets and answers none, npm by itself waits for minutes
OURS = {"jquery.flot.orderBars.js": ROOT / "benchmarks" / "side_by_side.js"}
REMOTE = re.compile(r'(src|href)="https?://[^"]*/([^"/]+\.(?:js|css))"[^>]*?(/?>)')


def fetched() -> bool:
    return all((FETCHED / "node_modules" / path).is_file() for path in FILES.values())


def fetch() -> str:
    """Asks npm. "" where everything is there afterwards, else what to do."""
    if fetched():
        return ""
    if shutil.which("npm") is None:
        return "npm is not on PATH: install Node.js, or let the pages load their scripts from the network"
    FETCHED.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(FETCHED), *PACKAGES]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return f"npm had no answer from {_registry()} in {PATIENCE_S:.0f} s: reach it, or name another by npm config set registry ADDRESS"
    return "" if fetched() else f"npm could not fetch {', '.join(PACKAGES)}: {(done.stdout.strip().splitlines() or [''])[-1]}"


def _registry() -> str:
    """Where npm asks; "its registry" where it does not say."""
    asked = subprocess.run(["npm", "config", "get", "registry"], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    return asked.stdout.strip() or "its registry"


def make_whole(html_dir: Path) -> list[str]:
    """Copies the files and names them in index.html. Returns what is still to be had from the network."""
    packages = FETCHED / "node_modules"
    here = {name: packages / path for name, path in FILES.items() if fetched()} | OURS
    left: list[str] = []

    def local(match: re.Match[str]) -> str:
        attribute, name, end = match.groups()
        if name not in here:
            left.append(name)
            return match[0]
        target = html_dir / "vendor" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(here[name], target)
        return f'{attribute}="vendor/{name}"{end}'

    page = html_dir / "index.html"
    page.write_text(REMOTE.sub(local, page.read_text()))
    if fetched():
        shutil.copytree(packages / "bootstrap" / "dist" / "fonts", html_dir / "fonts", dirs_exist_ok=True)
    return left


class Whole(OutputPublisher):  # type: ignore[misc]
    """Run by `asv publish` after its own pages."""

    name = "whole"

    @classmethod
    def publish(cls, conf: Any, *_: Any) -> None:
        if left := make_whole(Path(conf.html_dir)):
            log.warning(f"To be loaded from the network: {', '.join(left)}; `python asv_offline.py` fetches them once and for all")


if __name__ == "__main__":
    trouble = fetch()
    print(trouble or f"asv's scripts are in {FETCHED.relative_to(ROOT)}: `asv publish` puts them into the dashboard", file=sys.stderr)
    sys.exit(bool(trouble))
