// A sample in the plane: points colored by a column, hits ringed, the query as a cross.

import {count, get, h, number, percent, s, shown} from "./dom.js";

const GROUPS = 7, STEPS = 5, EDGE = 1.06;

/** From values to a class a point, and a legend of them; numbers in steps of as many points each. */
function colored(values, type, before) {
  const when = /^(date|timestamp)/.test(type);
  const numbers = values.map(one => (when && one !== null ? Date.parse(one) : one));
  const distinct = new Set(values).size;
  if ((when || /^(u?int|float|double|half|decimal)/.test(type)) && distinct > GROUPS) {
    const sorted = numbers.filter(one => one !== null && !Number.isNaN(Number(one))).map(Number).sort((a, b) => a - b);
    const ends = [...new Set(Array.from({length: STEPS}, (_, at) => sorted[Math.ceil(((at + 1) * sorted.length) / STEPS) - 1]))];
    const tell = one => (when ? new Date(one).toISOString().slice(0, 10) : number(Number(one.toPrecision(3))));
    const of = one => (one === null ? "none" : `step${ends.findIndex(end => Number(one) <= end)}`);
    const legend = ends.map((end, at) => [`step${at}`, at ? `to ${tell(end)}` : `${tell(sorted[0])} to ${tell(end)}`]);
    return {classes: numbers.map(of), legend};
  }
  const often = new Map();
  for (const one of values) often.set(one, (often.get(one) ?? 0) + 1);
  const named = [...often.keys()].filter(one => one !== null).sort((a, b) => often.get(b) - often.get(a));
  // A value keeps the color that it had in the map before.
  const shownNow = named.slice(0, GROUPS), free = Array.from({length: GROUPS}, (_, at) => `group${at}`);
  const place = new Map(shownNow.filter(one => before.has(one)).map(one => [one, before.get(one)]));
  for (const taken of place.values()) free.splice(free.indexOf(taken), 1);
  for (const one of shownNow) if (!place.has(one)) place.set(one, free.shift());
  for (const [one, group] of place) before.set(one, group);
  const legend = shownNow.map(one => [place.get(one), shown(one)]);
  if (named.length > GROUPS || often.has(null)) {
    legend.push(["none", named.length > GROUPS ? `${count(named.length - GROUPS)} others` : "without"]);
  }
  return {classes: values.map(one => place.get(one) ?? "none"), legend};
}

/**
 * Draw a map; `near(id)` is called for a point that is clicked.
 * Returns what shows one of the marks, -1 for none.
 */
export function draw(told, column, hits, near) {
  const {classes, legend} = told.values && column ? colored(told.values, column[1], column.colors ??= new Map()) : {classes: told.ids.map(() => "group0"), legend: []};
  const all = [...told.marks, ...(told.query ? [told.query] : [])];
  const reach = EDGE * Math.max(1, ...all.flat().map(Math.abs));
  const at = ([x, y]) => [(x / reach).toFixed(4), (-y / reach).toFixed(4)];
  const points = told.points.map((point, index) => {
    const [cx, cy] = at(point), value = told.values ? ` · ${shown(told.values[index])}` : "";
    return s("circle", {cx, cy, r: 0.014, class: classes[index], onclick: () => near(told.ids[index])},
      s("title", null, `${shown(told.ids[index])}${value}`));
  });
  const marks = told.marks.map((point, index) => {
    const [cx, cy] = at(point);
    return s("circle", {cx, cy, r: 0.026, class: "mark", onclick: () => near(hits[index])},
      s("title", null, `${index + 1}. ${shown(hits[index])}`));
  });
  const cross = told.query ? (([x, y]) => s("path", {class: "cross", d: `M${x} ${y}m-.04 0h.08m-.04-.04v.08`}))(at(told.query)) : null;
  const [first, second] = told.shares;
  const says = `${count(told.ids.length)} of ${count(told.rows)} rows` +
    `${column ? `, colored by ${column[0]}` : ""}${marks.length ? `; ${count(marks.length)} hits are ringed` : ""}` +
    `${cross ? ", the query is a cross" : ""}.`;
  const plane = s("svg", {viewBox: "-1 -1 2 2", role: "img", "aria-label": `Map of ${says}`},
    s("path", {class: "axes", d: "M-1 0h2M0-1v2"}), s("g", {class: "points"}, ...points), s("g", null, ...marks), cross);
  const alone = name => { plane.dataset.only = name ?? ""; for (const one of points) one.classList.toggle("faint", Boolean(name) && !one.classList.contains(name)); };
  get("map").replaceChildren(plane,
    h("ul", {class: "legend"}, ...legend.map(([name, text]) => h("li", null, h("button", {type: "button", class: "link", title: text,
      onmouseenter: () => alone(name), onmouseleave: () => alone(), onfocus: () => alone(name), onblur: () => alone()},
      s("svg", {viewBox: "-1 -1 2 2", "aria-hidden": "true"}, s("circle", {r: 0.8, class: name})), text)))),
    h("p", {class: "said"}, says, ` Across lies ${percent(first)} of the variance, upward ${percent(second)}.`));
  return index => marks.forEach((one, place) => one.classList.toggle("on", place === index));
}
