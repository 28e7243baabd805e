"""The page at ``/docs``: written from the OpenAPI document, one file, nothing loaded from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

__all__ = ["render_docs"]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 small { font-weight: normal; opacity: .6; }
section { border-top: 1px solid #8886; padding: 1rem 0; }
code, pre, textarea { font: 14px/1.4 ui-monospace, monospace; }
pre, textarea { background: #8881; padding: .75rem; overflow: auto; border: 1px solid #8884; }
textarea { width: 100%; box-sizing: border-box; min-height: 9rem; color: inherit; }
.method { font-weight: bold; margin-right: .5rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; }
input { font: inherit; }
"""

_SCRIPT = """
for (const form of document.querySelectorAll("form")) form.addEventListener("submit", async event => {
  event.preventDefault();
  const out = form.querySelector("pre"), text = form.querySelector("textarea");
  let path = form.dataset.path;
  for (const field of form.querySelectorAll("input"))
    path = path.replace(`{${field.name}}`, encodeURIComponent(field.value));
  const options = {method: form.dataset.method};
  if (text) { options.body = text.value; options.headers = {"Content-Type": "application/json"}; }
  out.hidden = false; out.textContent = "...";
  try {
    const answer = await fetch(path, options), body = await answer.text();
    let shown = body;
    try { shown = JSON.stringify(JSON.parse(body), null, 1); } catch {}
    out.textContent = `${answer.status} ${answer.statusText}\\n\\n${shown}`;
  } catch (error) { out.textContent = String(error); }
});
"""


def render_docs(document: Mapping[str, Any]) -> str:
    """Write the page.

    Parameters
    ----------
    document : Mapping
        An OpenAPI document.
    """
    info = document["info"]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>",
        f"<p>{escape(info.get('description', ''))}</p>",
        "<p>Machine-readable: <a href='openapi.json'>openapi.json</a></p>",
    ]
    for path, methods in document["paths"].items():
        parts += [_operation(path, method, operation, document) for method, operation in methods.items()]
    parts.append("<h2>Schemas</h2>")
    for name, schema in sorted(document.get("components", {}).get("schemas", {}).items()):
        text = escape(json.dumps(schema, indent=1))
        parts.append(
            f"<details id='{escape(name)}'><summary>{escape(name)}</summary><pre>{text}</pre></details>"
        )
    parts.append(f"<script>{_SCRIPT}</script></body></html>")
    return "".join(parts)


def _operation(path: str, method: str, operation: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema")
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(field))}</td>"
        f"<td>{_default(field)}</td><td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in (schema or {}).get("properties", {}).items()
    )
    answers = "".join(
        f"<tr><td>{escape(status)}</td><td>{escape(answer.get('description', ''))}</td></tr>"
        for status, answer in operation.get("responses", {}).items()
    )
    parts = [
        f"<section><h2><span class='method'>{escape(method.upper())}</span><code>{escape(path)}</code></h2>",
        f"<p>{escape(operation.get('description') or operation.get('summary', ''))}</p>",
    ]
    if content:
        parts.append(f"<p>Bodies: {', '.join(f'<code>{escape(kind)}</code>' for kind in content)}</p>")
    asked = "".join(
        f"<tr><td><code>{escape(one['name'])}</code></td><td>{escape(_kind(_schema_of(one)))}</td>"
        f"<td>{_default(_schema_of(one))}</td><td>{escape(one.get('description', ''))}</td></tr>"
        for one in operation.get("parameters", ())
        if one["in"] == "query"
    )
    if rows:
        parts.append(f"<table><tr><th>field</th><th>type</th><th>default</th><th></th></tr>{rows}</table>")
    if asked:
        head = "<tr><th>in the query string</th><th>type</th><th>default</th><th></th></tr>"
        parts.append(f"<details><summary>Query string</summary><table>{head}{asked}</table></details>")
    parts.append(f"<h3>Answers</h3><table>{answers}</table>")
    example = _example(operation, document)
    if example is not None:
        parts.append(f"<p>Such as</p><pre>{escape(json.dumps(example, indent=1))}</pre>")
    parts.append(f"<form data-path='{escape(path)}' data-method='{escape(method.upper())}'>")
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            name = escape(parameter["name"])
            parts.append(f"<p><label>{name} <input name='{name}' required></label></p>")
    if schema is not None:
        example = (schema.get("examples") or [{}])[0]
        parts.append(
            f"<p><textarea spellcheck='false'>{escape(json.dumps(example, indent=1))}</textarea></p>"
        )
    parts.append("<p><button>Try it</button></p><pre hidden></pre></form></section>")
    return "".join(parts)


def _schema_of(parameter: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a parameter, written plainly or as JSON."""
    content: Mapping[str, Any] = parameter.get("content", {}).get("application/json", parameter)
    schema: Mapping[str, Any] = content["schema"]
    return schema


def _default(field: Mapping[str, Any]) -> str:
    if field.get("default") is None:
        return ""
    return f"<code>{escape(json.dumps(field['default']))}</code>"


def _example(operation: Mapping[str, Any], document: Mapping[str, Any]) -> Any:
    """The first example of the answer, where its schema has one."""
    content = operation.get("responses", {}).get("200", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    named = document.get("components", {}).get("schemas", {}).get(name, {})
    return next(iter(named.get("examples", ())), None)


def _kind(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_kind(one) for one in field["anyOf"])
    if field.get("type") == "array":
        return f"array of {_kind(field.get('items', {}))}"
    return str(field.get("type", "any"))
