// Collections, rows, what shards cost, how they answered: each as a table.

import {cell, count, h, number, percent, shown, size, table, time} from "./dom.js";

const KINDS = ["codes", "links", "cache", "pages", "workers", "filters", "live"];
const sum = values => values.reduce((total, one) => total + one, 0);
const figure = name => ({name, class: "figure"});

export const memoryOf = shards => sum(shards.map(one => sum(Object.values(one.memory_bytes))));
export const partsOf = shards => sum(shards.map(one => one.live?.parts.length ?? 1));
export const pressureOf = shards => Math.max(0, ...shards.map(one => one.live?.pressure ?? 0));

/** How full the memory for new rows is. */
export function pressure(share) {
  const bar = h("i"), full = share >= 0.75 ? " full" : "";
  bar.style.width = `${100 * share}%`;
  return h("span", {class: "pressure"}, h("span", {class: `bar${full}`, role: "meter", "aria-label": "Pressure",
    "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": share.toFixed(3)}, bar), percent(share));
}

/** What memory is spent on, as parts of a bar. */
function spent(shards) {
  const bytes = KINDS.map(kind => sum(shards.map(one => one.memory_bytes[kind] ?? 0))), all = sum(bytes) || 1;
  const told = KINDS.map((kind, at) => `${kind} ${size(bytes[at])}`).filter((one, at) => bytes[at]).join(", ");
  return h("span", {class: "bar wide", role: "img", "aria-label": told, title: told}, ...bytes.map((one, at) => {
    const part = h("i", {class: `shade${at}`});
    part.style.width = `${(100 * one) / all}%`;
    return part;
  }));
}

/** All collections; of one whose shards do not answer, only what the gateway knows. */
export function collections(all) {
  const kinds = KINDS.map((kind, at) => h("li", null, h("i", {class: `shade${at}`}), kind));
  return [table("Collections",
    ["Collection", figure("Rows"), figure("Dimensions"), "Metric", figure("Memory"), {name: h("span", {class: "unseen"}, "Memory by what it is for")}, figure("Disk"), figure("Parts"),
      "Pressure", figure("Shards up")],
    all.map(({summary, info}) => h("tr", null,
      h("th", {scope: "row"}, h("a", {href: `#${encodeURIComponent(summary.name)}`}, summary.name),
        summary.version ? h("small", null, ` ${summary.version}`) : null),
      cell("Rows", count(summary.n), {class: "figure"}),
      cell("Dimensions", count(summary.dim), {class: "figure"}),
      cell("Metric", summary.metric),
      cell("Memory", info ? size(memoryOf(info.shards)) : "–", {class: "figure"}),
      h("td", null, info ? spent(info.shards) : ""),
      cell("Disk", info ? size(sum(info.shards.map(one => one.disk_bytes))) : "–", {class: "figure"}),
      cell("Parts", info ? count(partsOf(info.shards)) : "–", {class: "figure"}),
      cell("Pressure", info?.shards.some(one => one.live?.writable) ? pressure(pressureOf(info.shards)) : "–"),
      cell("Shards up", `${summary.shards_up} of ${summary.shards_total}`, {
        class: summary.shards_up < summary.shards_total ? "figure wrong" : "figure"})))),
  h("ul", {class: "legend bar", "aria-hidden": "true"}, h("li", null, "Memory:"), ...kinds)];
}

/** What each shard costs: a column a shard, so that ten lines fit beside the rows. */
export function shards(info, states) {
  const state = name => states.filter(one => one.name.split("/")[0] === name);
  const line = (name, told) => h("tr", null, h("th", {scope: "row"}, name),
    ...info.shards.map(one => h("td", {class: "figure"}, told(one))));
  return table("What each shard costs", ["Shard", ...info.shards.map(one => figure(one.shard))], [
    line("state", one => state(one.shard).map(a => (a.state === "up" ? "up" : `down: ${a.reason}`)).join(", ")),
    line("rows", one => count(one.n)),
    line("deleted, not merged", one => count(one.live?.dead ?? 0)),
    line("parts", one => count(one.live?.parts.length ?? 1)),
    line("rows of no part yet", one => count(one.live?.delta.n ?? 0)),
    line("pressure", one => (one.live?.writable ? percent(one.live.pressure) : "–")),
    ...KINDS.filter(kind => info.shards.some(one => one.memory_bytes[kind])).map(kind =>
      line(`memory: ${kind}`, one => size(one.memory_bytes[kind] ?? 0))),
    line("budget", one => (one.memory_budget_bytes ? size(one.memory_budget_bytes) : "–")),
    line("disk", one => size(one.disk_bytes)),
    line("plan", one => one.plan.replaceAll("_", " ")),
    ...(info.shards.some(one => one.live?.upkeep_failure)
      ? [line("upkeep failed", one => one.live?.upkeep_failure ?? "–")] : []),
  ]);
}

/** How each shard answered a query. */
export function explained(all) {
  const line = (name, told) => h("tr", null, h("th", {scope: "row"}, name),
    ...all.map(one => h("td", {class: "figure"}, told(one))));
  const way = one => (one.filter_plan ? one.filter_plan.chosen : one.plan.replaceAll("_", " "));
  const reasons = new Set(all.map(one => one.filter_plan?.reason).filter(Boolean));
  return [table("How each shard answered", ["Shard", ...all.map(one => figure(one.shard))], [
    line("way", way),
    line("rows that pass", one => (one.matches === null || one.matches === undefined ? "all" : count(one.matches))),
    line("distances estimated", one => count(one.estimates)),
    line("reads", one => count(one.reads)),
    line("rounds of reads", one => count(one.rounds)),
    line("bytes read", one => size(one.bytes_read)),
    line("found in the cache", one => count(one.cache_hits)),
    line("records scored", one => count(one.records_scored)),
    line("reads expected", one => one.expected?.reads?.toFixed(1) ?? "–"),
    line("recall expected", one => one.expected?.recall?.toFixed(3) ?? "–"),
    line("time in the worker", one => time(one.latency_us / 1000)),
  ]), ...[...reasons].map(one => h("p", {class: "said"}, `Filter: ${one}.`))];
}

/**
 * Rows: their ids, distances where there are some, and columns. Each opens below itself to all that it holds.
 * `does.near(id)` looks for what is near a row, `does.only(column, value)` for rows with a value, `does.point(at)`
 * shows one in the map.
 */
export function rows(found, columns, does) {
  const measured = found.some(one => one.distance !== undefined);
  const numeric = new Set(columns.filter(([, type]) => /^(u?int|float|double|half)/.test(type)).map(([name]) => name));
  const heads = ["id", ...(measured ? [figure("distance")] : []),
    ...columns.map(([name]) => (numeric.has(name) ? figure(name) : name))];
  return table("Rows", heads, found.flatMap((one, at) => {
    const more = h("tr", {class: "more", hidden: true}), name = shown(one.id);
    const open = h("button", {class: "link code", type: "button", "aria-expanded": "false", onclick() {
      if (!more.firstChild) more.append(h("td", {colspan: heads.length}, details(one.values, does.only)));
      more.hidden = !more.hidden;
      open.setAttribute("aria-expanded", String(!more.hidden));
    }}, name);
    return [h("tr", {onmouseenter: () => does.point(at), onmouseleave: () => does.point(-1),
      onfocusin: () => does.point(at), onfocusout: () => does.point(-1)},
      h("th", {scope: "row", title: name}, h("span", {class: "id"}, open, h("button", {class: "quiet", type: "button",
        "aria-label": `near ${name}`, title: "Its neighbors", onclick: () => does.near(one.id)}, "near"))),
      measured ? cell("distance", number(Number(one.distance.toPrecision(4))), {class: "figure"}) : null,
      ...columns.map(([column]) => {
        const text = shown(one.values[column]);
        return cell(column, text, {class: numeric.has(column) ? "figure" : null, title: text.length > 30 ? text.slice(0, 400) : null});
      })), more];
  }));
}

/** All of a row; a value is a button that asks for rows with the same. */
function details(values, only) {
  const single = (column, value) => (typeof value === "object" && value !== null
    ? shown(value)
    : h("button", {class: "link", type: "button", title: `Only rows with this ${column}`, onclick: () => only(column, value)},
      shown(value)));
  return h("dl", {class: "details"}, ...Object.entries(values).flatMap(([column, value]) => [
    h("dt", null, column),
    h("dd", null, ...(Array.isArray(value) && value.length ? value.map(one => single(column, one)) : [single(column, value)])),
  ]));
}
