// The window: where it looks is in the address, so that going back and reloading work.

import {ask, forgetKey, hasKey, read, write} from "./api.js";
import {count, get, h, percent, size, time} from "./dom.js";
import {draw} from "./map.js";
import * as tables from "./tables.js";

const form = get("form"), fields = form.elements;
const REFRESH_MS = 5000;

let at = {name: "", told: new URLSearchParams()};  // what the address says
let known = {name: "", info: null, columns: []};   // of the collection that is looked at
let running = new AbortController();
let found = [], query = null, seed = 0;
let point = () => {}, pointed = -1;  // what shows a hit in the map, and the hit that is shown

const path = (name, what) => `v1/collections/${encodeURIComponent(name)}/${what}`;
const idOf = text => (known.info.ids === "string" ? text : read(/^\s*-?\d+\s*$/.test(text) ? text : write(text)));

// ---- what is wrong

function fault(error) {
  if (error.name === "AbortError") return;
  const field = {filter: "filter", ids: "row", vector: "vector", text: "text", k: "k"}[error.argument]
    ?? (/Filter|Column/.test(error.kind ?? "") ? "filter" : null);
  get("fault").textContent = error.message;
  get("fault").hidden = false;
  if (field) { fields[field].setAttribute("aria-invalid", "true"); fields[field].setAttribute("aria-errormessage", "fault"); }
}

function clear() {
  get("fault").hidden = true;
  for (const one of form.querySelectorAll("[aria-invalid]")) one.removeAttribute("aria-invalid");
}

/** Run what may fail; errors are shown in one place. */
const trying = work => work().catch(fault);

// ---- where to look

function go(told, replace = false) {
  const text = new URLSearchParams(Object.entries(told).filter(([, value]) => value !== "" && value !== null));
  const hash = `#${encodeURIComponent(at.name)}${String(text) && "?"}${text}`;
  if (hash === location.hash) return trying(look);
  if (replace) history.replaceState(null, "", hash); else location.hash = hash;
  return replace ? trying(look) : null;
}

function asked() {
  const by = fields.by.value, told = {by: by === "all" ? "" : by, filter: fields.filter.value.trim()};
  if (by !== "all") told[by] = fields[by].value.trim();
  if (fields.k.value !== "20") told.k = fields.k.value;
  return told;
}

const near = id => go({...asked(), by: "row", row: String(id), vector: "", text: ""});

/** Rows with this value, among those that are looked at. */
function only(column, value) {
  const now = fields.filter.value.trim(), one = {[column]: value};
  const before = now === "" ? {} : now.startsWith("{") ? read(now) : null;
  fields.filter.value = before === null
    ? `(${now}) AND "${column.replaceAll('"', '""')}" ${value === null ? "IS NULL" : `= ${typeof value === "string" ? `'${value.replaceAll("'", "''")}'` : write(value)}`}`
    : write({...before, ...one});
  go(asked());
}

function filterOf(text) {
  if (!/^[{[]/.test(text)) return text || undefined;
  try { return read(text); } catch (error) {
    throw Object.assign(new Error(`The filter is not JSON: ${error.message}`), {argument: "filter"});
  }
}

function vectorOf(text) {
  const numbers = text.replace(/^\s*\[|\]\s*$/g, "").split(/[\s,;]+/).filter(Boolean).map(Number);
  if (!numbers.length || numbers.some(one => !Number.isFinite(one))) {
    throw Object.assign(new Error("A vector is numbers, with commas or spaces between them."), {argument: "vector"});
  }
  return numbers;
}

// ---- all collections

async function home(signal) {
  const list = await ask("v1/collections", undefined, signal);
  const all = await Promise.all(list.collections.map(async summary => ({
    summary, info: await ask(path(summary.name, "info"), {}, signal).catch(() => null),
  })));
  get("home").replaceChildren(h("h1", {class: "unseen"}, "Collections"), h("div", {class: "scrolls", role: "region", "aria-label": "All collections", tabindex: 0}, ...tables.collections(all)));
  return list;
}

// ---- one collection

async function meet(name, signal) {
  const [summary, info] = await Promise.all([
    ask(`v1/collections/${encodeURIComponent(name)}`, undefined, signal), ask(path(name, "info"), {}, signal),
  ]);
  const fresh = known.name !== name;
  known = {name, info, columns: fresh ? info.columns : known.columns};
  const parts = tables.partsOf(info.shards), writable = info.shards.some(one => one.live?.writable);
  const told = [["rows", count(summary.n)], ["dimensions", count(summary.dim)], ["metric", summary.metric],
    ["memory", size(tables.memoryOf(info.shards))], [parts === 1 ? "part" : "parts", count(parts)]];
  get("figures").replaceChildren(
    ...told.map(([label, value]) => h("div", null, h("dt", null, label), h("dd", null, value))),
    ...(writable ? [h("div", null, h("dt", null, "pressure"), h("dd", null, tables.pressure(tables.pressureOf(info.shards))))] : []));
  get("states").textContent = `${summary.shards_up} of ${summary.shards_total} up`;
  get("parts").replaceChildren(tables.shards(info, summary.shards));
  if (!fresh) return;
  // Nothing of another collection stays, whatever is wrong with what is asked of this one.
  for (const one of ["rows", "map", "explained"]) get(one).replaceChildren();
  get("told").textContent = name;
  get("cost").hidden = get("pages").hidden = true;
  document.title = `${name} – velo`;
  get("columns").replaceChildren("Columns: ", ...info.columns.map(([column, type]) => h("button", {type: "button", class: "link code",
    title: type, onclick: () => { fields.filter.setRangeText(column, fields.filter.selectionStart, fields.filter.selectionEnd, "end"); fields.filter.focus(); }}, column)));
  get("columns").hidden = !info.columns.length;
  fields.filter.placeholder = example(info.columns);
  const text = fields.by[3];
  text.disabled = !info.embeds;
  text.parentElement.title = info.embeds ? "" : "The server has no embedding function: velo serve --embed MODULE:FUNCTION";
  const single = info.columns.filter(([, type]) => !/^(list|large_list|fixed_size_list|struct|map)/.test(type));
  get("color").replaceChildren(h("option", {value: ""}, "one color"), ...single.map(([column]) => h("option", {value: column}, column)));
  get("color").value = (single.find(([column, type]) => /^(bool|u?int8)$/.test(type) || /section|category|kind|class|label|type/i.test(column)) ?? [""])[0];
}

function example(columns) {
  const number = columns.find(([, type]) => /^(u?int|float|double)/.test(type)), text = columns.find(([, type]) => type === "string");
  if (number) return `{"${number[0]}": {"$lt": 10}}  or  ${number[0]} < 10`;
  return text ? `{"${text[0]}": {"$starts_with": "a"}}  or  ${text[0]} LIKE 'a%'` : "";
}

/** The query's vector, whichever way it was asked for; null for none. */
async function queryOf(by, told, signal) {
  if (by === "row") return (await ask(path(at.name, "vectors"), {ids: [idOf(told.get("row") ?? "")]}, signal)).vectors[0];
  if (by === "vector") return vectorOf(told.get("vector") ?? "");
  if (by === "text") return (await ask(path(at.name, "embed"), {text: told.get("text") ?? ""}, signal)).vector;
  return null;
}

async function look() {
  running.abort();
  running = new AbortController();
  const {signal} = running, {name, told} = at;
  clear();
  get("forget").hidden = !hasKey();
  get("home").hidden = name !== "";
  get("look").hidden = get("collection").hidden = name === "";
  if (name === "") { get("figures").replaceChildren(); document.title = "velo"; known.name = ""; await home(signal); get("forget").hidden = !hasKey(); return; }
  get("rows").setAttribute("aria-busy", "true");
  try {
    await meet(name, signal);
    get("forget").hidden = !hasKey();
    await choices(name, signal);
    const by = told.get("by") ?? "all", filter = filterOf(told.get("filter") ?? "");
    query = await queryOf(by, told, signal);
    await (query === null ? browse(filter, told, signal) : search(filter, told, signal));
    trying(() => map(filter, signal));
  } finally {
    if (running.signal === signal) get("rows").removeAttribute("aria-busy");
  }
}

async function choices(name, signal) {
  const list = await ask("v1/collections", undefined, signal), names = list.collections.map(one => one.name);
  get("collection").replaceChildren(...[...names, ...Object.keys(list.aliases)].map(one => h("option", {selected: one === name}, one)));
  get("collection").value = name;
}

async function browse(filter, told, signal) {
  // One row more than is shown, as far as the server brings that many, says whether there are more.
  const limit = Number(told.get("k") ?? 20), brought = Math.min(limit + 1, 1000), after = told.get("after");
  const [counted, answer] = await Promise.all([
    ask(path(at.name, "count"), {filter}, signal), ask(path(at.name, "rows"), {filter, limit: brought, after: after === null ? undefined : idOf(after)}, signal),
  ]);
  const more = answer.rows.length === brought;
  found = answer.rows.slice(0, limit).map(({id, ...values}) => ({id, values}));
  get("told").textContent = `${count(counted.count)} ${counted.count === 1 ? "row" : "rows"}${filter ? " pass" : ""}`;
  get("pages").hidden = after === null && !more;
  get("first").disabled = after === null;
  get("next").disabled = !more;
  get("next").onclick = () => go({...asked(), after: String(found.at(-1).id)});
  get("cost").hidden = true;
  showRows();
}

async function search(filter, told, signal) {
  const body = {vector: query, k: Number(told.get("k") ?? 20), filter, return_metadata: known.columns.length ? true : undefined};
  const answer = await ask(path(at.name, "search"), body, signal), {stats} = answer;
  found = answer.ids[0].map((id, place) => ({id, distance: answer.distances[0][place], values: answer.metadata?.[0][place] ?? {}}));
  get("told").textContent = `${count(found.length)} ${found.length === 1 ? "hit" : "hits"}, nearest first` +
    (answer.partial ? `, without ${answer.shards_total - answer.shards_answered} of ${answer.shards_total} shards` : "");
  get("pages").hidden = true;
  get("cost").hidden = false;
  get("spent").textContent = `${time(answer.took_ms)}, ${count(stats.reads)} reads, ${size(stats.bytes_read)}`;
  get("explained").replaceChildren();
  showRows();
  const explain = async () => {
    const {k} = body, told = await ask(path(at.name, "explain"), {vector: query, k, filter}, signal);
    get("explained").replaceChildren(...tables.explained(told.shards));
  };
  get("cost").ontoggle = () => { if (get("cost").open && !get("explained").firstChild) trying(explain); };
  get("cost").ontoggle();
}

function showRows() {
  pointed = -1;
  get("rows").replaceChildren(found.length ? tables.rows(found, known.columns, {near, only, point: place => point(pointed = place)})
    : h("p", {class: "said"}, "No row passes."));
  get("rows").scrollTo(0, 0);
}

async function map(filter, signal) {
  const color = get("color").value, hits = query === null ? [] : found.slice(0, 100).map(one => one.id);
  get("map").setAttribute("aria-busy", "true");
  const body = {filter, limit: Number(get("points").value), color: color || undefined, marks: hits, seed};
  const told = await ask(path(at.name, "map"), query === null ? body : {...body, vector: query}, signal);
  point = draw(told, known.columns.find(([name]) => name === color), hits, near);
  point(pointed);
  get("map").removeAttribute("aria-busy");
}

const mapAgain = () => trying(() => map(filterOf(at.told.get("filter") ?? ""), running.signal));

// ---- what is clicked

function showWay() {
  for (const one of form.querySelectorAll(".way")) one.hidden = one.id !== fields.by.value;
}

async function arrive() {
  const [name, text = ""] = location.hash.slice(1).split(/\?(.*)/s);
  at = {name: decodeURIComponent(name), told: new URLSearchParams(text)};
  fields.by.value = at.told.get("by") ?? "all";
  fields.k.value = at.told.get("k") ?? "20";
  for (const one of ["row", "vector", "text", "filter"]) fields[one].value = at.told.get(one) ?? "";
  showWay();
  await look();
}

form.addEventListener("submit", event => { event.preventDefault(); go(asked()); });
form.addEventListener("change", event => {
  if (event.target.name !== "by") return;
  showWay();
  if (fields.by.value === "all") go(asked()); else fields[fields.by.value].focus();
});
// Enter asks, in fields of several lines too; with the shift key it begins a line.
form.addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && event.target.matches("textarea")) { event.preventDefault(); form.requestSubmit(); }
});
get("collection").addEventListener("change", event => { location.hash = `#${encodeURIComponent(event.target.value)}`; });
get("first").addEventListener("click", () => go(asked()));
for (const one of ["color", "points"]) get(one).addEventListener("change", mapAgain);
get("again").addEventListener("click", () => { seed += 1; mapAgain(); });
get("forget").addEventListener("click", () => { forgetKey(); location.reload(); });
window.addEventListener("hashchange", () => trying(arrive));
setInterval(() => {
  const busy = document.hidden || get("ask").open || get("home").contains(document.activeElement);
  if (at.name === "" && !busy) trying(() => home(running.signal));
}, REFRESH_MS);
trying(async () => {
  if (location.hash.length < 2) {
    const {collections} = await ask("v1/collections");
    if (collections.length === 1) history.replaceState(null, "", `#${encodeURIComponent(collections[0].name)}`);
  }
  await arrive();
});
