// small.py in TypeScript, without packages. Node 22.18 or newer runs it as it is:
// `node agent.ts`; older ones need `npx tsx agent.ts`.

import { spawnSync } from "node:child_process";
import { appendFileSync, readFileSync } from "node:fs";
import { createInterface } from "node:readline";

type Block = {
  type: string;
  text?: string; // of a text
  id?: string; // of a call, with its name and input
  name?: string;
  input?: Record<string, string>;
  tool_use_id?: string; // of a result, with its content
  content?: string;
};
type Message = { role: string; content: string | Block[] };
type Reply = { content: Block[]; stop_reason: string };

const URL = `${process.env.ANTHROPIC_BASE_URL ?? "https://api.anthropic.com"}/v1/messages`;
const THRESHOLD = 50_000; // tokens; over it, layer 2 summarises
const KEEP_RECENT = 3; // newest messages with results
const MIN_SAVINGS = 20_000; // tokens that a clearing must free
const MAX_CHARS = 40_000; // for all results of one reply together
const TRANSCRIPT = "transcript.jsonl";
const SYSTEM = `You write code in ${process.cwd()}. All that was said is in ${TRANSCRIPT}.`;
const PROMPT = "Do not call a tool. Summarise this conversation, so that you can go on.";
const TOOLS = [tool("bash", "command"), tool("read_file", "path"), tool("compact")];

function tool(name: string, input: string = "") {
  const properties = input ? { [input]: { type: "string" } } : {};
  const required = Object.keys(properties);
  return { name, description: name, input_schema: { type: "object", properties, required } };
}

// Tokens: bytes of UTF-8 / 4. A Chinese character is one in `length`, but has three bytes.
function estimateTokens(value: unknown): number {
  return Buffer.byteLength(JSON.stringify(value)) / 4;
}

async function ask(messages: Message[]): Promise<Reply> {
  const fixed = { model: "claude-sonnet-5-5", max_tokens: 16_000, system: SYSTEM, tools: TOOLS };
  const key = process.env.ANTHROPIC_API_KEY ?? "";
  const response = await fetch(URL, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      "anthropic-version": "2023-06-01",
      "x-api-key": key,
    },
    body: JSON.stringify({ messages, ...fixed, cache_control: { type: "ephemeral" } }),
  });
  if (!response.ok) throw new Error(await response.text());
  const reply = await response.json();
  const isWhole = reply.stop_reason === "tool_use"; // no call is cut off
  reply.content = reply.content.filter(
    // without thinking: a layer would make it invalid
    ({ type, text }: Block) => (type === "text" && text?.trim()) || (type === "tool_use" && isWhole),
  );
  return reply;
}

// Write a message to the transcript before any layer can touch it.
function log(role: string, content: string | Block[]): Message {
  appendFileSync(TRANSCRIPT, `${JSON.stringify({ role, content })}\n`);
  return { role, content };
}

// Layer 1: replace old results with a placeholder, if that frees enough.
function microCompact(messages: Message[]) {
  const lists = messages.filter((m) => m.role === "user" && Array.isArray(m.content));
  const blocks = lists.slice(0, -KEEP_RECENT).flatMap((m) => m.content as Block[]);
  const old = blocks.filter((b) => b.type === "tool_result" && b.content!.length > 100);
  if (estimateTokens(old) < MIN_SAVINGS) return;
  for (const result of old) result.content = "[Old result, cleared]";
}

// Layer 2: replace all but the user's messages, which are strings, with a summary.
async function autoCompact(messages: Message[]) {
  const { content, stop_reason } = await ask([...messages, { role: "user", content: PROMPT }]);
  if (!content.length || stop_reason !== "end_turn") return; // keep everything
  const typed = messages.filter((m) => typeof m.content === "string");
  const title = { type: "text", text: "[Conversation compressed] Go on from here:" };
  messages.splice(0, messages.length, ...typed, log("user", [title, ...content]));
}

async function runTool(name: string, input: Record<string, string>): Promise<string> {
  if (name === "compact") return "Summarised before you go on.";
  if (name === "read_file") return readFileSync(input.path, "utf8");
  if (name !== "bash") return `There is no tool ${name}.`;
  if ((await question(`Run ${input.command}? [y/N] `)) !== "y") return "The user said no.";
  const done = spawnSync(input.command, { shell: true, encoding: "utf8", maxBuffer: 1e8 });
  return `${done.stdout}${done.stderr}\n(exit status ${done.status})`;
}

async function runTools(calls: Block[]): Promise<Block[]> {
  const results: Block[] = [];
  const most = MAX_CHARS / calls.length;
  for (const call of calls) {
    const text = await runTool(call.name!, call.input!).catch((error) => `${error}`);
    const content = text.length > most ? `${text.slice(0, most)}\n[cut]` : text || "(nothing)";
    results.push({ type: "tool_result", tool_use_id: call.id, content });
  }
  return results;
}

async function agentLoop(messages: Message[]) {
  for (;;) {
    microCompact(messages);
    if (estimateTokens(messages) > THRESHOLD) await autoCompact(messages);
    const { content } = await ask(messages);
    for (const { text } of content) if (text) console.log(text);
    const calls = content.filter((block) => block.type === "tool_use");
    if (!calls.length) {
      if (content.length) messages.push(log("assistant", content));
      return;
    }
    const reply = log("assistant", content);
    messages.push(reply, log("user", await runTools(calls))); // together
    if (calls.some((call) => call.name === "compact")) await autoCompact(messages); // layer 3
  }
}

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
async function question(text: string): Promise<string> {
  process.stdout.write(text);
  return (await lines.next()).value ?? "";
}

const messages: Message[] = [];
for (let prompt = ""; (prompt = await question("> ")); ) {
  messages.push(log("user", prompt));
  await agentLoop(messages).catch((error) => console.log(`Stopped: ${error}`));
}
