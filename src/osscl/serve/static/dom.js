// Small helpers: elements from plain values (text is never parsed as HTML), requests, announcements, dialogs.

export function h(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name in made && !["list", "form"].includes(name)) made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  return fill(made, ...children);
}

export function fill(place, ...children) {
  place.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return place;
}

export const byId = (id) => document.getElementById(id);
export const count = (n, word, many = `${word}s`) => `${n.toLocaleString("en")} ${n === 1 ? word : many}`;
export const percent = (value, digits = 1) => `${value.toFixed(digits)} %`;
export const pictureOf = (id, size = "small") => `/api/pictures/${id}/${size}`;

export function say(text) {
  byId("live").textContent = text;
}

export class Refusal extends Error {
  constructor(status, body) {
    super(body.error ?? `the server answered with status ${status}`);
    this.status = status;
    this.body = body;
  }
}

export async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Refusal(0, { error: "The server does not respond. Is osscl serve still running?" });
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refusal(answer.status, body);
  return body;
}

export const send = (path, body = {}, method = "POST") =>
  ask(path, { method, headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

export function failure(error) {
  return h("p", { class: "failure", role: "alert" }, error.message);
}

export function dialog(title, content, actions, wide = false) {
  const box = byId("dialog");
  box.className = wide ? "wide" : "";
  const close = () => box.close();
  const problem = h("div", {});
  const form = h("form", { method: "dialog", onsubmit: async (event) => {
    event.preventDefault();
    const action = event.submitter?.value;
    if (!action) return close();
    const button = event.submitter;
    button.disabled = true;
    try {
      await actions[action].run();
      close();
    } catch (error) {
      button.disabled = false;
      problem.replaceChildren(failure(error));
    }
  } }, h("h2", { id: "dialog-title" }, title), content, problem, h("div", { class: "row" },
    h("button", { type: "submit", value: "" , formNoValidate: true }, Object.keys(actions).length ? "Cancel" : "Close"),
    Object.entries(actions).map(([name, one]) => h("button", { type: "submit", class: one.class ?? "main", value: name }, one.label))));
  box.replaceChildren(form);
  box.showModal();
  box.querySelector("input, select")?.focus();
}
