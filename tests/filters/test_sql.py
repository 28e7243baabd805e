"""SQL text as a filter: what it reads as, and what is no condition."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pytest

from velo.errors import FilterError, FilterTypeError, UnknownColumnError
from velo.filters import And, Not, Or, col, from_dict, from_sql, from_text

a, b, tags = col("a"), col("b"), col("tags")


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("a = 1", a == 1),
        ("a == 1", a == 1),
        ("a <> 1", a != 1),
        ("a != -1.5", a != -1.5),
        ("a >= 1e3", a >= 1000.0),
        ("1 < a", a > 1),
        ("1 >= a", a <= 1),
        ("((a)) = (1)", a == 1),
        ("a = 123456789012345678901234567890", a == 123456789012345678901234567890),
        ("year >= 2020 AND tag IN ('a','b')", (col("year") >= 2020) & col("tag").isin(["a", "b"])),
        ("a = 1 and b = 2 or not a = 3", Or((And((a == 1, b == 2)), Not(a == 3)))),
        ("a = 1 AND (b = 2 OR b = 3) AND a < 9", And((a == 1, Or((b == 2, b == 3)), a < 9))),
        ("NOT (a = 1 OR b IS NULL)", ~((a == 1) | b.is_null())),
        ("a BETWEEN 1 AND 2", a.between(1, 2)),
        ("a NOT BETWEEN 1 AND 2", ~a.between(1, 2)),
        ("a IN (1, 2)", a.isin([1, 2])),
        ("a IN ()", a.isin([])),
        ("a NOT IN ('x')", ~a.isin(["x"])),
        ("a IS NULL", a.is_null()),
        ("a IS NOT NULL", a.is_valid()),
        ("a LIKE 'x%'", a.starts_with("x")),
        ("a NOT LIKE 'x%'", ~a.starts_with("x")),
        ("a LIKE 'x'", a == "x"),
        ("a LIKE '%'", a.starts_with("")),
        ("a LIKE '5!%!_!!%' ESCAPE '!'", a.starts_with("5%_!")),
        ("starts_with(a, 'x')", a.starts_with("x")),
        ("a", a == True),  # noqa: E712
        ("NOT a AND b", ~a & b),
        ("a = TRUE", a == True),  # noqa: E712
        ("a IS FALSE", (a == False) & a.is_valid()),  # noqa: E712
        ("TRUE", And(())),
        ("FALSE", Or(())),
        ("array_contains(tags, 'x')", tags.contains_any(["x"])),
        ("array_contains_any(tags, ARRAY['x', 'y'])", tags.contains_any(["x", "y"])),
        ("HAS_ANY(tags, ['x', 'y'])", tags.contains_any(["x", "y"])),
        ("has_all(tags, ('x', 'y'))", tags.contains_all(["x", "y"])),
        ("array_contains_all(tags, ARRAY[1, 2])", tags.contains_all([1, 2])),
        ("array_contains_all(tags, ARRAY[])", tags.contains_all([])),
        ("a < DATE '2020-01-31'", a < dt.date(2020, 1, 31)),
        ("a < CAST('2020-01-31' AS DATE)", a < dt.date(2020, 1, 31)),
        ("a < TIMESTAMP '2020-01-31 08:30:00'", a < np.datetime64("2020-01-31T08:30:00", "ns")),
        ("a < TIMESTAMP '2020-01-31'", a < np.datetime64("2020-01-31", "ns")),
        (
            "a < TIMESTAMPTZ '2020-01-31 08:30:00+02:00'",
            a < dt.datetime(2020, 1, 31, 6, 30, tzinfo=dt.timezone.utc),
        ),
        ("a = TIME '08:30:00'", a == dt.time(8, 30)),
        ("a = 'it''s; -- /* a text */ DROP'", a == "it's; -- /* a text */ DROP"),
        ('"a name.with points" = 1', col("a name.with points") == 1),
        ("Größe = 'é'", col("Größe") == "é"),
        (
            "date > 3 AND timestamp = 2 AND index = 1",
            And((col("date") > 3, col("timestamp") == 2, col("index") == 1)),
        ),
        ('set = 1 AND "select" = 2', (col("set") == 1) & (col("select") == 2)),
        ("  a\n=\n1  ", a == 1),
    ],
)
def test_it_reads_as_the_expression(text: str, expr: Any) -> None:
    assert from_sql(text) == expr
    assert from_text(text) == expr


@pytest.mark.parametrize(
    ("text", "place", "part"),
    [
        ("SELECT * FROM t WHERE a = 1", (1, 1), "SELECT is not part"),
        ("a = 1; DROP TABLE t", (1, 6), "semicolon"),
        ("a = 1;", (1, 6), "semicolon"),
        ("DELETE FROM t", (1, 1), "DELETE"),
        ("a = 1 OR 1 = 1", (1, 10), "neither"),
        ("a = 'x' OR 1=1 --", (1, 16), "comments"),
        ("a = 1 /* hidden */ AND b = 2", (1, 7), "comments"),
        ("a = (SELECT max(b) FROM t)", (1, 6), "SELECT"),
        ("a IN (SELECT b FROM t)", (1, 7), "SELECT"),
        ("EXISTS (SELECT 1)", (1, 9), "SELECT"),
        ("a = 1 UNION ALL SELECT 2", (1, 7), "UNION"),
        ("CASE WHEN a THEN b END", (1, 1), "CASE"),
        ("a = 1 ORDER BY b", (1, 7), "ORDER BY"),
        ("a = b", (1, 5), "other columns"),
        ('a = "x"', (1, 5), "single quotes"),
        ("a IN (b)", (1, 7), "column"),
        ("a + 1 = 2", (1, 3), "the operator + is not supported"),
        ("a = 1 + 1", (1, 7), "the operator + is not supported"),
        ("a || 'x' = 'xy'", (1, 3), "the operator || is not supported"),
        ("regexp(a, 'x')", (1, 1), "unknown"),
        ("array_contains(tags)", (1, 1), "not 1 arguments"),
        ("has(tags)", (1, 1), "not 1 arguments"),
        ("array_contains_all(tags, 'x')", (1, 26), "a list such as"),
        ("array_contains('x', tags)", (1, 16), "a column is expected"),
        ("a LIKE 'x!' ESCAPE '!'", (1, 8), "escape"),
        ("lower(a) = 'x'", (1, 1), "unknown"),
        ("array_length(tags, 2) = 1", (1, 1), "array_length(column) does"),
        ("a LIKE 3", (1, 8), "text"),
        ("a ILIKE 3", (1, 9), "text"),
        ("a ~ 'x'", (1, 3), "the operator ~ is not supported"),
        ("a =", (1, 3), "not a condition"),
        ("(a = 1", (1, 6), "not a condition"),
        ("a = 1)", (1, 6), "not a condition"),
        ("a = 1 AND\n  b == c", (2, 8), "other columns"),
        ("a = 'x", (1, 5), "does not end"),
        ("3", (1, 1), "a value alone"),
        ("a = 5::int", (1, 5), "only texts are cast"),
        ("a < DATE '2020-02-30'", (1, 10), "ISO 8601"),
        ("a < TIMESTAMP 'yesterday'", (1, 15), "ISO 8601"),
        ("a < INTERVAL '3' HOUR", (1, 14), "INTERVAL"),
        ("a = :who", (1, 5), "not bound"),
        ("a IS DISTINCT FROM 3", (1, 6), "IS takes NULL, TRUE or FALSE"),
        ("a BETWEEN SYMMETRIC 2 AND 1", (1, 11), "this is a column"),
        ("a = '\ud800'", (1, 6), "UTF-8"),
        ("a = '\0'", (1, 6), "NUL"),
    ],
)
def test_what_is_no_condition_says_where(text: str, place: tuple[int, int], part: str) -> None:
    with pytest.raises(FilterError) as caught:
        from_sql(text)
    assert f"line {place[0]}, character {place[1]}:" in str(caught.value)
    assert part in str(caught.value)
    assert caught.value.argument == "filter"


@pytest.mark.parametrize("text", ["a = NULL", "a IN (1, NULL)", "a BETWEEN NULL AND 3"])
def test_null_is_asked_for_with_is(text: str) -> None:
    with pytest.raises(FilterTypeError, match="IS NULL"):
        from_sql(text)


@pytest.mark.parametrize("text", ["", " \n "])
def test_nothing_is_no_condition(text: str) -> None:
    with pytest.raises(FilterError, match="empty"):
        from_sql(text)


@pytest.mark.parametrize("depth", [66, 1000, 10_000])
def test_deep_nesting_is_an_error_and_no_crash(depth: int) -> None:
    for text in (
        "(" * depth + "a = 1" + ")" * depth,
        "NOT " * depth + "a",
        "a IN " + "(" * depth + "1" + ")" * depth,
        "NOT (" * depth + "a" + ")" * depth,
        "has(" * depth + "a" + ")" * depth,
    ):
        with pytest.raises(FilterError, match="nested deeper than 64"):
            from_sql(text)


def test_long_is_not_deep() -> None:
    wide = from_sql(" OR ".join(f"a = {number}" for number in range(3000)))
    assert wide == Or(tuple(a == number for number in range(3000)))
    with pytest.raises(FilterError, match="isin"):
        from_sql(" OR ".join(["a = 1"] * 5000))
    with pytest.raises(FilterError, match="above the limit"):
        from_sql("a IN (" + ", ".join(["1234567"] * 200_000) + ")")
    many = from_sql("a IN (" + ", ".join(map(str, range(10_000))) + ")")
    assert many == a.isin(range(10_000))


def test_texts_that_are_not_text() -> None:
    with pytest.raises(FilterTypeError, match="bytes"):
        from_sql(b"a = 1")  # type: ignore[arg-type]


def test_json_text_is_told_from_sql() -> None:
    assert from_text(' {"a": {"$gt": 1}}') == from_text("a > 1") == from_dict({"a": {"$gt": 1}})
    with pytest.raises(FilterError, match="not JSON"):
        from_text("{a > 1")


def test_the_schema_is_checked_at_the_place_in_the_text(world: Any) -> None:
    for text, error, part in (
        ("int31 = 1", UnknownColumnError, "line 1, character 1: there is no column 'int31'"),
        ("int32 = 1 AND\n word > 3", FilterTypeError, "line 2, character 2: column 'word'"),
        ("int32 IN (1, 'x')", FilterTypeError, "line 1, character 1[1]: column 'int32'"),
        ("tags = 3", FilterTypeError, "elements of column 'tags'"),
        ("word.x = 3", UnknownColumnError, "line 1, character 1: there is no column 'word.x'"),
        ("array_contains(word, 'x')", FilterTypeError, "holds no lists"),
        ("int32 LIKE 'x%'", FilterTypeError, "no strings"),
        ("\"when\" > 'yesterday'", FilterError, "ISO 8601"),
    ):
        with pytest.raises(error) as caught:
            world.compiler.compile(text)
        assert part in str(caught.value)


def test_the_same_filter_as_an_expression_passes_the_same_rows(world: Any) -> None:
    written = world.passing("int32 >= 2 AND NOT (word IN ('ab', 'b') OR int32 > 7)")
    built = (col("int32").between(2, 7)) & (col("word") != "ab") & ~(col("word") == "b")
    np.testing.assert_array_equal(world.passing(built), written)
