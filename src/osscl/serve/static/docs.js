// The endpoints, from openapi.json.

import { ask, byId, failure, h } from "./dom.js";

const typeOf = (schema) => schema?.$ref?.split("/").pop() ?? schema?.anyOf?.map(typeOf).join(" or ") ??
  (schema?.type === "array" ? `list of ${typeOf(schema.items)}` : schema?.enum?.join(" | ") ?? schema?.const ?? schema?.type ?? "any");

function fields(schema, all) {
  const found = schema?.$ref ? all[schema.$ref.split("/").pop()] : schema;
  if (!found?.properties) return null;
  return h("ul", {}, Object.entries(found.properties).map(([name, one]) => h("li", {}, h("code", {}, name), ` ${typeOf(one)}`, one.description ? `: ${one.description}` : "")));
}

function endpoint(path, method, one, all) {
  const body = one.requestBody && Object.entries(one.requestBody.content)[0];
  const ok = Object.entries(one.responses).find(([status]) => status.startsWith("2"));
  const answers = Object.entries(ok?.[1].content ?? {}); // a stream of JSON lines has its own kind beside the fields
  return h("section", { class: "card endpoint" }, h("h2", {}, h("code", {}, `${method.toUpperCase()} ${path}`)), h("p", {}, one.description ?? one.summary ?? ""),
    one.parameters?.length ? h("ul", {}, one.parameters.map((given) => h("li", {}, h("code", {}, given.name), ` ${typeOf(given.schema)}`))) : null,
    body ? [h("p", { class: "muted small" }, `Body, ${body[0]}:`), fields(body[1].schema, all)] : null,
    answers.length ? [h("p", { class: "muted small" }, `Answer, ${answers.find(([kind]) => kind !== "application/json")?.[0] ?? answers[0][0]}:`), fields(answers.find(([, one]) => one.schema)?.[1].schema, all)] : null);
}

try {
  const description = await ask("/openapi.json");
  const all = description.components.schemas;
  byId("endpoints").append(...Object.entries(description.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, one]) => endpoint(path, method, one, all))));
} catch (error) {
  byId("endpoints").append(failure(error));
}
