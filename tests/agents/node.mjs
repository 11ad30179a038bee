// small.py in JavaScript, with Node alone: `node node.mjs` asks for prompts.

import { spawnSync } from "node:child_process";
import { appendFileSync, readFileSync } from "node:fs";
import http from "node:http";
import readline from "node:readline";

const URL_ = `${process.env.ANTHROPIC_BASE_URL}/v1/messages`;
const STREAM = process.env.STREAM === "1"; // ask for events
const TOOLS = [["run", "script"], ["view", "file"], ["sum_up"]].map(([name, input]) => ({
  name,
  description: name,
  input_schema: {
    type: "object",
    properties: input ? { [input]: { type: "string" } } : {},
    required: input ? [input] : [],
  },
}));
const PROMPT = "Do not call a tool. Summarise this conversation, so that you can go on.";

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const question = async (text) => {
  process.stdout.write(text);
  return (await lines.next()).value;
};

// About a token for four bytes of UTF-8: a Chinese character has three.
const tokens = (value) => Buffer.byteLength(JSON.stringify(value)) / 4;

function post(body) {
  return new Promise((resolve, reject) => {
    const headers = { "content-type": "application/json", "x-api-key": "none" };
    const request = http.request(URL_, { method: "POST", headers }, (response) => {
      const chunks = [];
      response.on("data", (chunk) => chunks.push(chunk));
      response.on("end", () => resolve([response.statusCode, Buffer.concat(chunks)]));
    });
    request.on("error", reject);
    request.write(JSON.stringify(body)); // in chunks, without a length
    request.end();
  });
}

function fromEvents(text) {
  const reply = { content: [] };
  const inputs = [];
  for (const line of text.split("\n").filter((l) => l.startsWith("data: "))) {
    const { type, index, content_block, delta } = JSON.parse(line.slice(6));
    if (type === "content_block_start") reply.content[index] = content_block;
    if (type === "message_delta") reply.stop_reason = delta.stop_reason;
    if (type !== "content_block_delta") continue;
    if (delta.type === "text_delta") reply.content[index].text += delta.text;
    if (delta.type === "input_json_delta")
      inputs[index] = (inputs[index] ?? "") + delta.partial_json;
  }
  for (const index in inputs) reply.content[index].input = JSON.parse(inputs[index]);
  return reply;
}

async function ask(messages) {
  const fixed = { model: "claude-sonnet-5-5", max_tokens: 16000, tools: TOOLS };
  const cache = { cache_control: { type: "ephemeral" }, stream: STREAM };
  const [status, data] = await post({ messages, ...fixed, ...cache });
  if (status !== 200) throw new Error(data.toString());
  const reply = STREAM ? fromEvents(data.toString()) : JSON.parse(data.toString());
  const content = reply.content.filter((b) => b.type !== "thinking");
  return [content, reply.stop_reason];
}

function log(role, content) {
  appendFileSync("transcript.jsonl", JSON.stringify({ role, content }) + "\n");
  return { role, content };
}

async function runTool({ name, input }) {
  if (name === "sum_up") return "Summarised before you go on.";
  if (name === "view") return readFileSync(input.file, "utf8");
  if ((await question(`Run ${input.script.slice(0, 40)}? `)) !== "y") return "No.";
  const done = spawnSync(input.script, { shell: true, maxBuffer: 1e8 });
  return `${done.stdout}${done.stderr}` || "(no output)";
}

async function runTools(calls) {
  const results = [];
  for (const call of calls) {
    const content = await runTool(call).catch((error) => `${error}`);
    const short = content.slice(0, 40000 / calls.length);
    results.push({ type: "tool_result", tool_use_id: call.id, content: short });
  }
  return results;
}

function microCompact(messages) {
  const lists = messages.filter((m) => m.role === "user" && Array.isArray(m.content));
  const results = lists.slice(0, -3).flatMap((m) => m.content);
  const old = results.filter((b) => b.type === "tool_result" && b.content.length > 100);
  if (tokens(old) >= 20000) for (const b of old) b.content = "[Old result, cleared]";
}

async function autoCompact(messages) {
  const [content, stop] = await ask([...messages, { role: "user", content: PROMPT }]);
  if (!content.length || stop !== "end_turn") return;
  const typed = messages.filter((m) => typeof m.content === "string");
  const title = { type: "text", text: "[Conversation compressed] Go on from here:" };
  messages.splice(0, messages.length, ...typed, log("user", [title, ...content]));
}

async function agentLoop(messages) {
  for (;;) {
    microCompact(messages);
    if (tokens(messages) > 50000) await autoCompact(messages);
    const [content] = await ask(messages);
    const calls = content.filter((block) => block.type === "tool_use");
    if (!calls.length) {
      console.log(content.map((block) => block.text).join(""));
      if (content.length) messages.push(log("assistant", content));
      return;
    }
    const reply = log("assistant", content);
    messages.push(reply, log("user", await runTools(calls)));
    if (calls.some((call) => call.name === "sum_up")) await autoCompact(messages);
  }
}

const messages = [];
for (let prompt; (prompt = await question("> ")); ) {
  messages.push(log("user", prompt));
  await agentLoop(messages).catch((error) => console.log(`Stopped: ${error}`));
}
