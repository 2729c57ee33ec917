"""What opens doors is cut from urls, however they are spelled and wherever they stand."""

from __future__ import annotations

import time

import pytest
from kit import Run

from ckptconv.errors import StorageError, UsageError
from ckptconv.messages import redacted, scrubbed

SHOWN = {
    "http://u:hush@h:80/a/b?sig=hush": "http://h:80/a/b?...",
    "HTTPS://u:hu/sh@h/x": "HTTPS://h/x",
    "https://u:hu?sh@h/x": "https://...",
    "https://h/p@q/x": "https://h/p@q/x",
    # addresses of IPv6
    "http://u:hush@[::1]:8/m.npz?sig=hush": "http://[::1]:8/m.npz?...",
    "http://[::1]:8/m.npz?sig=hush": "http://[::1]:8/m.npz?...",
    "http://[::1]/a@b": "http://b",
    "https://[2001:db8::1]/a?X-Amz-Signature=hush#hush": "https://[2001:db8::1]/a?...",
    "http://u:a::hush@h/x": "http://h/x",
    "https://h/x?u=http://z::hush": "https://h/x?...",
    "https://h/x?a::b=hush": "https://h/x?...",
    "https://h/x#a::hush": "https://h/x",
    # quotes and brackets
    "http://me:hu'sh@h/x": "http://h/x",
    'http://me:"hush@h/x': "http://h/x",
    "http://me:a<hush@h/x": "http://h/x",
    "http://me:a`hush@h/x": "http://h/x",
    "http://me:hush@h/x's?sig=hush": "http://h/x's?...",
    "https://h/x?sig='hush'": "https://h/x?...",
    "https://h/x?a='&sig=hush": "https://h/x?...",
    "ftp://u:hush@h/x'": "ftp://h/x'",
    # logins with what belongs elsewhere
    "HTTPS://u:hush@h/x?sig=hush": "HTTPS://h/x?...",
    "http://u:12/hush@h/x": "http://h/x",
    "http://u:hush:12/x@h/y": "http://h/y",
    "http://u:[hush]/x@h/y": "http://h/y",
    "https://u:pa@ss:hush@h/x": "https://h/x",
    "https://hush@h/x": "https://h/x",
    "https://h\\@u:hush@/x": "https:///x",
    "https://u:hush @h/x": "https://h/x",
    "file://u:hush@h/x": "file://h/x",
    "https://h/web/https://u:hush@g/x": "https://g/x",
    # mistakes in the scheme, or none
    "//u:hush@h/x?sig=hush": "...@h/x?...",
    "http:/u:hush@h/x": "...@h/x",
    "u:hush@h/x?sig=hush": "...@h/x?...",
    # what is signed
    "abfs://c@a.dfs.core.windows.net/x?sv=1&sig=hush": "abfs://a.dfs.core.windows.net/x?...",
    "https://h/x?hush": "https://h/x?...",
    "HTTP://h/x#hush": "HTTP://h/x",
    "s3://b/k?X-Amz-Signature%3Dhush": "s3://b/k?...",
    "https:///u:hush@h/x": "https://h/x",
    "http//u:hush@h/x": "...@h/x",
    "HTTPS//u:hush@h/x": "...@h/x",
    "https///u:hush@h/x": "...@h/x",
    "s3:///u:hush@h/x": "s3://h/x",
    "https:///hush@h/x": "https://h/x",
    "https:///u%3Ahush@h/x": "https://h/x",
    "s3://buck%40et/k": "s3://buck%40et/k",
    "memory:///b@v1/k": "memory:///b@v1/k",
    "https://h/a b?sig=hush": "https://h/a b?...",
    "https://h/x?sig=a b hush": "https://h/x?...",
    # names of objects, of which nothing is a secret
    "memory://x#y": "memory://x#y",
    "s3://b/k#y": "s3://b/k#y",
    "s3://b/k?y": "s3://b/k?y",
    "https://h:80/a:b/c": "https://h:80/a:b/c",
    "a//b:c/d@e": "a//b:c/d@e",
}
UNBOUNDED = {"https://h/a b?sig=hush", "https://h/x?sig=a b hush"}  # in the midst of a text nobody knows where they end


@pytest.mark.parametrize("url", SHOWN)
def test_what_opens_doors_is_cut(url: str) -> None:
    shown = SHOWN[url]
    assert redacted(url) == shown == redacted(shown)
    for text in (f"cannot read {url} just now", f"no {url!r}, or `{url}`"):
        assert "hush" not in str(StorageError(text, url=url))
        assert "hush" not in str(UsageError(text)) or url in UNBOUNDED
        assert scrubbed(scrubbed(text)) == scrubbed(text)


def test_the_rest_of_a_text_stays() -> None:
    for text, shown in {
        "GET 'http://h/x?a=b' failed (404)": "GET 'http://h/x?...' failed (404)",
        "see http://h/x, or http://g/y.": "see http://h/x, or http://g/y.",
        "(http://u:p@h/x?s): no": "(http://h/x?...): no",
        '{"url": "https://h/x?s=1", "at": 3}': '{"url": "https://h/x?...", "at": 3}',
        "http://h:80 is silent; write to a@b": "http://h:80 is silent; write to a@b",
        "a//b:c@d, 50%2f": "a//b:c@d, 50%2f",
    }.items():
        assert scrubbed(text) == shown


def test_it_takes_linear_time() -> None:
    begun = time.monotonic()
    for piece in ("a", "a::", "://", "'http://", "http://u:", "//a:", "a://b/", "http://h/;", "?a", "zip://::", "@"):
        text = (piece * 200_000)[:400_000]
        scrubbed(f"://{text}")
        redacted(f"http://{text}")
        redacted(text)
    assert time.monotonic() - begun < 30


@pytest.mark.slow
def test_what_was_typed_is_not_repeated(cli: Run) -> None:
    for url in ("http://me:a'hush@h/x?s='hush", "https://u:a::hush@h/x", "http://h/x?s=a 'hush"):
        done = cli("convert", url)
        assert "where to?" in done.stderr
        assert "hush" not in done.stderr + done.stdout
