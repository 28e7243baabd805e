"""Where the files of an index lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from velo.errors import CorruptIndexError
from velo.folder.live import data_folder


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"parts": []}', '{"parts": [{"path": "../elsewhere"}]}', "[" * 100_000]
)
def test_a_root_that_names_no_part(tmp_path: Path, text: str) -> None:
    assert data_folder(tmp_path) == tmp_path
    (tmp_path / "live.json").write_text(text)
    with pytest.raises(CorruptIndexError, match=r"live\.json"):
        data_folder(tmp_path)
