"""Where the files of an index lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from velo.errors import CorruptIndexError, UnsupportedError
from velo.folder.live import data_folder, data_folders


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"parts": [{"path": "../elsewhere"}]}', "[" * 100_000])
def test_a_root_that_names_no_part(tmp_path: Path, text: str) -> None:
    assert data_folder(tmp_path) == tmp_path
    (tmp_path / "live.json").write_text(text)
    with pytest.raises(CorruptIndexError, match=r"live\.json"):
        data_folder(tmp_path)


def test_several_parts(tmp_path: Path) -> None:
    (tmp_path / "live.json").write_text('{"parts": [{"path": "a"}, {"path": "b"}]}')
    assert data_folders(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(UnsupportedError, match="2 parts"):
        data_folder(tmp_path)
    (tmp_path / "live.json").write_text('{"parts": []}')
    assert data_folders(tmp_path) == []
