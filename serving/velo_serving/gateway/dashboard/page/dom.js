// Elements, and how values read. Values of a collection become text here, never markup.

const SVG = "http://www.w3.org/2000/svg";

function made(element, told, children) {
  for (const [name, value] of Object.entries(told ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter(one => one !== null && one !== undefined));
  return element;
}

export const h = (name, told, ...children) => made(document.createElement(name), told, children);
export const s = (name, told, ...children) => made(document.createElementNS(SVG, name), told, children);
export const get = id => document.getElementById(id);

const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const UNITS = ["B", "kB", "MB", "GB", "TB"];

export const count = value => (typeof value === "bigint" ? String(value) : whole.format(value));
export const percent = share => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

export function size(bytes) {
  let unit = 0;
  while (bytes >= 999.5 && unit < UNITS.length - 1) { bytes /= 1000; unit += 1; }
  return `${bytes.toFixed(unit && bytes < 99.5 ? 1 : 0)} ${UNITS[unit]}`;
}

export const time = ms => (ms < 1 ? `${(1000 * ms).toFixed(0)} µs` : `${ms.toFixed(ms < 100 ? 1 : 0)} ms`);

/** A number as short as it can be told without saying something else. */
export const number = value =>
  typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(6))) : String(value);

/** A value of a row, in one line. */
export function shown(value) {
  if (value === null || value === undefined) return "–";
  if (Array.isArray(value)) return value.map(shown).join(", ");
  if (typeof value === "object") return Object.entries(value).map(([name, one]) => `${name}: ${shown(one)}`).join(", ");
  return typeof value === "string" ? value : number(value);
}

/** A cell, which knows its column where columns stand below each other. */
export const cell = (label, value, told = {}) => h("td", {"data-label": label, ...told}, value);

export const table = (caption, heads, rows) =>
  h("table", null, h("caption", {class: "unseen"}, caption),
    h("thead", null, h("tr", null, ...heads.map(one => h("th", {scope: "col", class: one.class}, one.name ?? one)))),
    h("tbody", null, ...rows));
