// Run a session with the TypeScript SDK, v1 or v2, and print the results as JSON. The argument is
// JSON. Its main keys are sdk (a directory with node_modules), generation, command, args, mode and
// calls. `cancel` lists tools whose calls the client cancels after their first progress
// notification.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const asked = JSON.parse(process.argv[2]);
const find = createRequire(asked.sdk + "/x.js");
const load = (name) => import(pathToFileURL(find.resolve(name)).href);
const v1 = asked.generation === 1;
const { Client } = v1
  ? await load("@modelcontextprotocol/sdk/client/index.js")
  : await load("@modelcontextprotocol/client");
const { StdioClientTransport } = v1
  ? await load("@modelcontextprotocol/sdk/client/stdio.js")
  : await load("@modelcontextprotocol/client/stdio");

const attempt = async (promise) => {
  try {
    const { _meta, ttlMs, ...rest } = await promise;
    return rest;
  } catch (error) {
    return { error: error.message };
  }
};
const options = { capabilities: asked.asks ? { sampling: {}, elicitation: {}, roots: {} } : {} };
if (!v1) options.versionNegotiation = { mode: asked.mode };
const client = new Client({ name: "test", version: "1" }, options);
const seen = [];
if (asked.asks) {
  const types = v1 ? await load("@modelcontextprotocol/sdk/types.js") : null;
  const handle = (method, schema, handler) => client.setRequestHandler(v1 ? types[schema] : method, handler);
  handle("sampling/createMessage", "CreateMessageRequestSchema", ({ params }) => {
    seen.push(params.messages[0].content.text);
    return { role: "assistant", model: "none", content: { type: "text", text: "word" } };
  });
  handle("elicitation/create", "ElicitRequestSchema", ({ params }) => {
    seen.push(params.message);
    return { action: "accept", content: { color: "red" } };
  });
  handle("roots/list", "ListRootsRequestSchema", () => ({ roots: [{ uri: "file:///project" }] }));
}
await client.connect(
  new StdioClientTransport({ command: asked.command, args: asked.args, env: process.env, stderr: "ignore" }),
);
const progress = [];
const found = {
  lists: [
    await attempt(client.listTools()),
    await attempt(client.listPrompts()),
    await attempt(client.listResources()),
    await attempt(client.listResourceTemplates()),
  ],
  calls: [],
};
const cancelled = [];
for (const name of asked.cancel ?? []) {
  const stop = new AbortController();
  const more = { signal: stop.signal, onprogress: () => stop.abort("enough") };
  const call = { name, arguments: {} };
  const result = v1 ? client.callTool(call, undefined, more) : client.callTool(call, more);
  cancelled.push(await result.then(() => "answered", () => "cancelled"));
}
for (const [name, given] of asked.calls) {
  const onprogress = (step) => progress.push(step.progress);
  const call = { name, arguments: given };
  const more = { onprogress };
  found.calls.push(await attempt(v1 ? client.callTool(call, undefined, more) : client.callTool(call, more)));
}
await client.close();
console.log(JSON.stringify({ ...found, progress, cancelled, seen }));
