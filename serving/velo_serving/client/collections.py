"""What the client does to collections as a whole: create, drop, copy, exchange."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from velo_serving.client.awaited import Asking, awaited
from velo_serving.client.calls import ARROW, TYPES, ClientCall
from velo_serving.wire.codec import stream_of

__all__ = ["ClientCollections"]


class ClientCollections(Asking):
    """What a ``Client`` can do to collections; where the server has keys, each takes an admin key."""

    def create(
        self,
        name: str,
        *,
        dim: int,
        metric: Literal["l2", "ip", "cosine"] = "l2",
        dtype: Literal["float32", "float16", "uint8", "int8"] = "float32",
        metadata: pa.Schema | None = None,
    ) -> dict[str, Any]:
        """Make a collection without rows, as ``velo.create``, in the server's folder for them (``--root``).

        Parameters
        ----------
        name : str
            What it is called: ``Client(url, collection=name)`` writes to it and searches it.
        dim, metric, dtype, metadata
            As of ``velo.create``.

        Returns
        -------
        dict
            ``name``, ``dim`` and ``metric`` of what was made.

        Raises
        ------
        IndexExistsError
            There is one of that name.
        InvalidArgumentError, UnsupportedError, AdminKeyError
        """
        fields: dict[str, Any] = {"name": name, "dim": dim, "metric": metric, "dtype": dtype}
        if metadata is None:
            call = ClientCall.of_fields(fields)
        else:
            headers = {"Content-Type": ARROW, "Accept": TYPES["json"]}
            call = ClientCall(stream_of(metadata.empty_table()), headers, fields)
        return self._ask("POST", "/v1/collections", call, lambda told: dict(told.json()))

    create_async = awaited(create)
    """As ``create``, without blocking the event loop."""

    def drop(self) -> list[str]:
        """Drop the collection: it is served no more, and what velo made in its folder is removed.

        Returns
        -------
        list of str
            Files there that velo did not make: they stay.

        Raises
        ------
        UnsupportedError
            It does not lie in the server's folder for collections.
        UnknownCollectionError, BusyError, AdminKeyError
        """
        return self._ask("DELETE", self._path_of(""), None, lambda told: list(told.json()["left"]))

    drop_async = awaited(drop)
    """As ``drop``, without blocking the event loop."""

    def snapshot(self, path: str | Path) -> None:
        """Make another folder of the server a collection that holds what this one holds now.

        Parameters
        ----------
        path : str or Path
            As of ``velo.Index.snapshot``: an absolute path, not there, or an empty folder.

        Raises
        ------
        IndexExistsError, UnsupportedError, InvalidArgumentError, AdminKeyError
        """
        return self._post("snapshot", ClientCall.of_fields({"path": str(path)}), lambda told: None)

    snapshot_async = awaited(snapshot)
    """As ``snapshot``, without blocking the event loop."""

    def publish(self, path: str | Path, version: str) -> dict[str, Any]:
        """Have another build served under the collection's name.

        The server opens it beside what it serves, so this takes as long as that: give the client a
        ``timeout_s`` to match.

        Parameters
        ----------
        path : str or Path
            A folder of the server, or a place in an object store.
        version : str
            What it is called; another one than now.

        Returns
        -------
        dict
            ``version``, ``n``, ``dim`` and ``metric`` of what is served now.

        Raises
        ------
        AdminKeyError, PublicationError, InvalidArgumentError
        """
        return self._post("publish", ClientCall.of_fields({"path": str(path), "version": version}), dict)

    publish_async = awaited(publish)
    """As ``publish``, without blocking the event loop."""
