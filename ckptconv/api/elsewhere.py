"""What other programs and libraries call our options, so that an error can name the one that was meant."""

from __future__ import annotations

from collections.abc import Collection

# By the word elsewhere: our keywords, of which a function or verb has some.
ELSEWHERE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("overwrite", "replace", "yes", "exist_ok"), ("force",)),
    **dict.fromkeys(("format", "type"), ("to", "from_")),
    **dict.fromkeys(("output_format", "target_format"), ("to",)),
    **dict.fromkeys(("input_format", "source_format"), ("from_",)),
    **dict.fromkeys(("precision", "torch_dtype", "half", "fp16", "bf16"), ("dtype",)),
    **dict.fromkeys(("filter", "only", "pattern", "keys", "grep"), ("include",)),
    **dict.fromkeys(("ignore", "skip"), ("exclude",)),
    **dict.fromkeys(("threads", "workers", "num_workers"), ("jobs",)),
    **dict.fromkeys(("key", "entry", "subset"), ("at",)),
    **dict.fromkeys(("remove_prefix", "drop_prefix"), ("strip_prefix",)),
    **dict.fromkeys(("prefix", "mapping", "key_mapping"), ("rename",)),
    **dict.fromkeys(("allow_pickle", "unsafe"), ("opaque",)),
    **dict.fromkeys(("ignore_errors", "skip_errors"), ("keep_going",)),
}


def elsewhere(word: str, allowed: Collection[str]) -> str:
    """The keyword that does what `word` does elsewhere, or ''."""
    return next((k for k in ELSEWHERE.get(word, ()) if k in allowed), "")
