// What the server is asked, and the key that it may ask for.

const KEY = "velo-key";

export class Refused extends Error {
  constructor(status, told) {
    super(told.message ?? `the server answered ${status}`);
    this.status = status;
    this.kind = told.type;
    this.argument = told.argument;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const forgetKey = () => sessionStorage.removeItem(KEY);

/** Whole numbers that JavaScript would round stay as they were written, as BigInt. */
const exact = (name, value, context) =>
  typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "")
    ? BigInt(context.source) : value;

/** And are written so. */
const plain = (name, value) => (typeof value === "bigint" ? JSON.rawJSON(String(value)) : value);

export const write = (value, indent) => JSON.stringify(value, plain, indent);
export const read = text => JSON.parse(text, exact);

let asking = null;

/** The key of the viewer; requests that need it meanwhile wait for the same answer. */
function askForKey(why) {
  asking ??= new Promise(done => {
    const dialog = document.getElementById("ask"), secret = document.getElementById("secret");
    document.getElementById("why").textContent = why;
    secret.value = "";
    dialog.addEventListener("close", () => {
      asking = null;
      if (secret.value) sessionStorage.setItem(KEY, secret.value.trim());
      secret.value = "";
      done();
    }, {once: true});
    dialog.addEventListener("cancel", event => event.preventDefault());
    dialog.showModal();
  });
  return asking;
}

/** Ask for JSON; with a body by POST. */
export async function ask(path, body, signal) {
  for (;;) {
    const key = sessionStorage.getItem(KEY), headers = {Accept: "application/json"};
    if (key !== null) headers.Authorization = `Bearer ${key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const answer = await fetch(path, {
      method: body === undefined ? "GET" : "POST", headers, signal,
      body: body === undefined ? undefined : write(body),
    });
    const text = await answer.text();
    if (answer.status === 401) {
      // Another request may have brought a key since.
      if (sessionStorage.getItem(KEY) === key) await askForKey(key === null ? "" : "This key is not known here.");
      continue;
    }
    let told;
    try { told = read(text); } catch { told = {}; }
    if (!answer.ok) throw new Refused(answer.status, told.error ?? {});
    return told;
  }
}
