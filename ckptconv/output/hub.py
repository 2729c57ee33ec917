"""Write to a repository of the Hugging Face Hub: all files of an output in one commit, so that readers see all or none.

The Hub's client sends the content of large files first, and the commit names them; what a run that failed has sent is
in no commit, and nobody sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import StorageError
from ..messages import many, version
from ..storage import lookups
from ..storage.faults import asking
from ..storage.lookups import filesystem

SCHEME = "hf://"


def commit(files: Mapping[str, str], older: Sequence[str]) -> None:
    """Add local files by their urls (url to path), and delete the `older` urls, in one commit of their repository.

    StorageError if there is no such repository or branch: none is created, since only its owner knows who may see it.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    first = next(iter(files))
    lookups.forget()
    fs, _ = filesystem(first)
    with asking(first):
        try:
            places = {url: fs.resolve_path(url.removeprefix(SCHEME)) for url in (*files, *older)}
        except FileNotFoundError as e:
            raise StorageError("no such repository or branch; `hf repo create ORG/REPO` makes one", url=first) from e
        repo = places[first]
        HfApi(endpoint=fs.endpoint, token=fs.token).create_commit(
            repo.repo_id,
            [
                *(CommitOperationAdd(places[url].path_in_repo, path) for url, path in files.items()),
                *(CommitOperationDelete(places[url].path_in_repo) for url in older),
            ],
            commit_message=f"Upload {many(len(files), 'file')} with ckptconv {version()}",
            repo_type=repo.repo_type,
            revision=repo.revision,
        )


def takes(folder: str) -> bool:
    """Whether a folder lies in a repository, which keeps commits; buckets of the Hub do not."""
    return folder.startswith(SCHEME) and not folder.startswith(f"{SCHEME}buckets/")


__all__ = ["commit", "takes"]
