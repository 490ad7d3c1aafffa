// Checks of programs that drive `claude` themselves, with `callboard` in its place: Zed's adapter for the Agent Client
// Protocol, and a provider for the Vercel AI SDK. Prints one JSON line for each check.
// Environment: CALLBOARD (the executable), WORKSPACE, SCENARIO, MODULES (the folder with node_modules).
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { Readable, Writable } from 'node:stream';
import { pathToFileURL } from 'node:url';

const { CALLBOARD, WORKSPACE, SCENARIO, MODULES } = process.env;
const require = createRequire(join(MODULES, 'package.json'));
const load = async (name) => import(pathToFileURL(require.resolve(name)).href);
const ADAPTER = join(MODULES, 'node_modules', '@agentclientprotocol', 'claude-agent-acp', 'dist', 'index.js');
const PIXEL =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
const model = `rehearsal:${SCENARIO}`;

async function editor() {
  const inner = createRequire(ADAPTER);
  const acp = await import(pathToFileURL(inner.resolve('@agentclientprotocol/sdk')).href);
  const env = { ...process.env, CLAUDE_CODE_EXECUTABLE: CALLBOARD, ANTHROPIC_MODEL: model };
  const child = spawn(process.execPath, [ADAPTER], { cwd: WORKSPACE, env, stdio: ['pipe', 'pipe', 'pipe'] });
  let told = '';
  child.stderr.on('data', (text) => { told += text; });
  const updates = [];
  const asked = [];
  const client = {
    sessionUpdate: async ({ update }) => { updates.push(update); },
    requestPermission: async (request) => {
      asked.push(request);
      const choice = request.options.find((one) => one.kind === 'allow_always') ?? request.options[0];
      return { outcome: { outcome: 'selected', optionId: choice.optionId } };
    },
    readTextFile: async ({ path }) => ({ content: readFileSync(path, 'utf8') }),
    writeTextFile: async () => ({}),
  };
  const stream = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
  const connection = new acp.ClientSideConnection(() => client, stream);
  await connection.initialize({
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: { fs: { readTextFile: true, writeTextFile: true } },
  });
  const said = () => updates.filter((one) => one.sessionUpdate === 'agent_message_chunk')
    .map((one) => one.content.text ?? '').join('');
  return { connection, updates, asked, said, told: () => told, end: () => child.kill() };
}

const checks = {
  async an_editor_prompts_and_asks_for_permission() {
    const zed = await editor();
    try {
      const { sessionId } = await zed.connection.newSession({ cwd: WORKSPACE, mcpServers: [] });
      const first = await zed.connection.prompt({ sessionId, prompt: [{ type: 'text', text: 'hello' }] });
      assert.equal(first.stopReason, 'end_turn');
      assert(zed.said().includes('All done.'), zed.said());
      const image = { type: 'image', mimeType: 'image/png', data: PIXEL };
      const second = await zed.connection.prompt({ sessionId, prompt: [{ type: 'text', text: 'look at it' }, image] });
      assert.equal(second.stopReason, 'end_turn');
      for (const text of ['touch a file', 'touch a file again'])
        await zed.connection.prompt({ sessionId, prompt: [{ type: 'text', text }] });
      assert.deepEqual(zed.asked.map((one) => one.toolCall.rawInput.command), ['touch first.txt']);
      assert(existsSync(join(WORKSPACE, 'first.txt')));
      const calls = zed.updates.filter((one) => one.sessionUpdate === 'tool_call_update').map((one) => one.status);
      assert(calls.includes('completed'), JSON.stringify(calls));
      const slow = zed.connection.prompt({ sessionId, prompt: [{ type: 'text', text: 'wait long' }] });
      await new Promise((resolve) => { setTimeout(resolve, 1500); });
      await zed.connection.cancel({ sessionId });
      assert.equal((await slow).stopReason, 'cancelled');
      const after = await zed.connection.prompt({ sessionId, prompt: [{ type: 'text', text: 'hello again' }] });
      assert.equal(after.stopReason, 'end_turn');
    } catch (error) { error.stack += zed.told(); throw error; } finally { zed.end(); }
  },
  async an_editor_loads_an_earlier_session() {
    const zed = await editor();
    let sessionId;
    try {
      ({ sessionId } = await zed.connection.newSession({ cwd: WORKSPACE, mcpServers: [] }));
      await zed.connection.prompt({ sessionId, prompt: [{ type: 'text', text: 'remember apples' }] });
    } catch (error) { error.stack += zed.told(); throw error; } finally { zed.end(); }
    const again = await editor();
    try {
      await again.connection.loadSession({ sessionId, cwd: WORKSPACE, mcpServers: [] });
      const { stopReason } = await again.connection.prompt({ sessionId, prompt: [{ type: 'text', text: 'which fruit?' }] });
      assert.equal(stopReason, 'end_turn');
      assert(again.said().includes('Apples.'), again.said());
    } catch (error) { error.stack += again.told(); throw error; } finally { again.end(); }
  },
  async the_ai_sdk_generates_streams_and_makes_objects() {
    const { generateText, streamText, generateObject } = await load('ai');
    const { createClaudeCode } = await load('ai-sdk-provider-claude-code');
    const { z } = await load('zod');
    const provider = createClaudeCode({ defaultSettings: { pathToClaudeCodeExecutable: CALLBOARD, cwd: WORKSPACE } });
    const text = await generateText({ model: provider(model), prompt: 'hello' });
    assert.equal(text.text, 'All done.');
    assert(text.usage.outputTokens > 0);
    let streamed = '';
    for await (const part of streamText({ model: provider(model), prompt: 'hello' }).textStream) streamed += part;
    assert.equal(streamed, 'All done.');
    const { object } = await generateObject({
      model: provider(model), schema: z.object({ sum: z.number() }), prompt: 'as a sum',
    });
    assert.deepEqual(object, { sum: 42 });
  },
};

const wanted = process.argv.slice(2);
for (const [name, check] of Object.entries(checks)) {
  if (wanted.length && !wanted.includes(name)) continue;
  let detail = '';
  try { await check(); } catch (error) { detail = `${error.stack}`; }
  process.stdout.write(`${JSON.stringify({ name, detail })}\n`);
}
process.exit(0);
