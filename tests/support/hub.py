"""As much of the Hugging Face Hub's API as its client asks of one model repository: a stand-in on this machine."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class Hub(http.server.ThreadingHTTPServer):
    """files: by path, in the newest commit. commits: the paths that each one added (+) and deleted (-)."""

    daemon_threads = True

    def __init__(self, repo: str, token: str) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.repo, self.token = repo, token
        self.files: dict[str, bytes] = {}
        self.commits: list[list[str]] = []
        self.ranges: list[str] = []  # that were asked for

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def sha(self) -> str:
        return f"{len(self.commits):040x}"


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        if m := re.fullmatch(rf"/api/models/{hub.repo}(/revision/.+)?", path):
            self._json({"id": hub.repo, "modelId": hub.repo, "sha": hub.sha, "siblings": [], "private": True})
        elif m := re.fullmatch(rf"/api/models/{hub.repo}/tree/[^/]+/?(.*)", path):
            self._json(self._tree(m[1].rstrip("/"), "recursive=true" in self.path.lower()))
        elif (m := re.fullmatch(rf"/{hub.repo}/resolve/[^/]+/(.+)", path)) and m[1] in hub.files:
            self._file(hub.files[m[1]])
        else:
            self._missing()

    def do_POST(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {hub.token}" and not path.endswith("/paths-info/main"):
            self._send(401, b"{}", {"X-Error-Message": "Invalid username or password."})
        elif re.fullmatch(rf"/api/models/{hub.repo}/paths-info/.+", path):
            wanted = parse_qs(body.decode()).get("paths", []) if body[:1] != b"{" else json.loads(body)["paths"]
            known = {e["path"]: e for e in self._tree("", True)}
            self._json([known[p] for p in wanted if p in known])
        elif re.fullmatch(rf"/api/models/{hub.repo}/preupload/.+", path):
            names = [f["path"] for f in json.loads(body)["files"]]
            self._json({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
        elif re.fullmatch(rf"/api/models/{hub.repo}/commit/.+", path):
            hub.commits.append([*map(self._done, map(json.loads, body.splitlines()[1:]))])
            self._json({"success": True, "commitUrl": f"{hub.url}/{hub.repo}/commit/{hub.sha}", "commitOid": hub.sha})
        else:
            self._missing()

    def _done(self, line: dict[str, Any]) -> str:
        value = line["value"]
        if line["key"] == "deletedFile":
            del self.server.files[value["path"]]
            return f"-{value['path']}"
        assert line["key"] == "file"
        self.server.files[value["path"]] = base64.b64decode(value["content"])
        return f"+{value['path']}"

    def _tree(self, folder: str, recursive: bool) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for path, data in self.server.files.items():
            *above, _ = path.split("/")
            for depth in range(1, len(above) + 1):
                name = "/".join(above[:depth])
                found[name] = {"type": "directory", "path": name, "oid": "0" * 40, "size": 0}
            oid = hashlib.sha1(data).hexdigest()  # as git names it
            found[path] = {"type": "file", "path": path, "oid": oid, "size": len(data)}
        start = f"{folder}/" if folder else ""
        return [e for p, e in found.items() if p.startswith(start) and (recursive or "/" not in p[len(start) :])]

    def _file(self, data: bytes) -> None:
        tag = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": self.server.sha}
        if m := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            self.server.ranges.append(m[0])
            first, last = int(m[1]), min(int(m[2]), len(data) - 1)
            span = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
            self._send(206, data[first : last + 1], tag | span)
        else:
            self._send(200, data, tag)

    def _missing(self) -> None:
        kind = "EntryNotFound" if f"/{self.server.repo}/" in self.path else "RepoNotFound"
        self._send(404, b"{}", {"X-Error-Code": kind, "X-Error-Message": "not found"})

    def _json(self, what: Any) -> None:
        self._send(200, json.dumps(what).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
