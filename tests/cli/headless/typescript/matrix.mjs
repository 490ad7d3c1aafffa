// Checks of the published TypeScript SDK with `callboard` as its executable. Prints one JSON line for each check.
// Environment: CALLBOARD (the executable), WORKSPACE, SCENARIO, PLUGIN, MODULES (the folder with node_modules).
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { spawn } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { randomUUID } from 'node:crypto';

const { CALLBOARD, WORKSPACE, SCENARIO, PLUGIN, MODULES } = process.env;
const require = createRequire(join(MODULES, 'package.json'));
const entry = require.resolve('@anthropic-ai/claude-agent-sdk');
const { query, createSdkMcpServer, listSessions, prewarm, tool, SYSTEM_PROMPT_DYNAMIC_BOUNDARY } = await import(pathToFileURL(entry).href);
const { z } = await import(pathToFileURL(require.resolve('zod')).href);
const PIXEL =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';

let told = '';
const options = (more = {}) => ({
  pathToClaudeCodeExecutable: CALLBOARD,
  model: `rehearsal:${SCENARIO}`,
  cwd: WORKSPACE,
  stderr: (text) => { told += text; },
  ...more,
});
const user = (content, more = {}) => ({ type: 'user', message: { role: 'user', content }, parent_tool_use_id: null, ...more });
async function* once(...messages) { yield* messages; }
async function ask(prompt, more) {
  const messages = [];
  for await (const message of query({ prompt, options: options(more) })) messages.push(message);
  return messages;
}
const last = (messages) => messages.filter((one) => one.type === 'result').at(-1);
const init = (messages) => messages.find((one) => one.subtype === 'init');

/** Keep a session open: `say` sends a message and resolves to the messages of its turn. */
function talk(more) {
  const waiting = [];
  let wake = () => {};
  let ended = false;
  async function* input() {
    while (!ended) {
      while (waiting.length) yield waiting.shift();
      await new Promise((resolve) => { wake = resolve; if (waiting.length || ended) resolve(); });
    }
  }
  const session = query({ prompt: input(), options: options(more) });
  const reader = session[Symbol.asyncIterator]();
  const say = async (content, fields) => {
    waiting.push(user(content, fields));
    wake();
    const messages = [];
    for (;;) {
      const { value, done } = await reader.next();
      if (done) return messages;
      messages.push(value);
      if (value.type === 'result') return messages;
    }
  };
  const end = () => { ended = true; wake(); session.close(); };
  return { session, say, end };
}

/** The examples of options in the package's types: each begins a session that answers. */
const EXAMPLES = () => ({
  agent: {
    agent: 'code-reviewer',
    agents: { 'code-reviewer': { description: 'Reviews code for best practices', prompt: 'You are a code reviewer...' } },
  },
  agents: {
    agents: { 'test-runner': { description: 'Runs tests', prompt: 'You run tests.', tools: ['Read', 'Grep', 'Glob', 'Bash'] } },
  },
  toolAliases: { toolAliases: { Bash: 'mcp__workspace__bash' } },
  env: { env: { ...process.env, CLAUDE_AGENT_SDK_CLIENT_APP: 'my-app/1.0.0' } },
  toolConfig: { toolConfig: { askUserQuestion: { previewFormat: 'html' } } },
  hooks: { hooks: { PreToolUse: [{ hooks: [async () => ({ continue: true })] }] } },
  onElicitation: { onElicitation: async () => ({ action: 'accept', content: { name: 'Test' } }) },
  mcpServers: { mcpServers: { 'my-server': { command: 'node', args: ['./my-mcp-server.js'] } } },
  outputFormat: { outputFormat: { type: 'json_schema', schema: { type: 'object', properties: { sum: { type: 'number' } } } } },
  plugins: { plugins: [{ type: 'local', path: './my-plugin' }, { type: 'local', path: PLUGIN }] },
  sandbox: { sandbox: { enabled: true, autoAllowBashIfSandboxed: true } },
  sandboxNetwork: {
    sandbox: { enabled: true, network: { allowLocalBinding: true, allowUnixSockets: ['/var/run/docker.sock'] } },
  },
  settings: { settings: { model: 'claude-sonnet-5', permissions: { allow: ['Bash(*)'] } } },
  settingsFile: { settings: join(WORKSPACE, 'settings.json') },
  managedSettings: { managedSettings: { sandbox: { network: { allowManagedDomainsOnly: true } } } },
  allSkills: { skills: 'all' },
  skills: { skills: ['pdf', 'docx'] },
  systemPrompt: { systemPrompt: 'You are a helpful coding assistant.' },
  boundary: { systemPrompt: ['Static.', SYSTEM_PROMPT_DYNAMIC_BOUNDARY, 'Dynamic.'] },
  append: { systemPrompt: { type: 'preset', preset: 'claude_code', append: 'Always explain your reasoning.' } },
  recordedAppend: {
    systemPrompt: { type: 'preset', preset: 'claude_code', append: 'Always explain your reasoning.', snapshot: true },
  },
  recorded: { systemPrompt: { type: 'custom', prompt: 'You are a release bot.', snapshot: true } },
  spawn: {
    spawnClaudeCodeProcess: ({ command, args, cwd, env, signal }) => spawn(command, args, { cwd, env, signal }),
  },
  cacheable: { systemPrompt: { type: 'preset', preset: 'claude_code', excludeDynamicSections: true } },
});

const checks = {
  async examples_of_the_types_begin_a_session() {
    writeFileSync(join(WORKSPACE, 'settings.json'), '{}');
    const failed = [];
    for (const [name, more] of Object.entries(EXAMPLES())) {
      try {
        const messages = await ask(name === 'outputFormat' ? 'as a sum' : 'hello', more);
        assert.equal(last(messages).is_error, false, name);
        if (name === 'outputFormat') assert.deepEqual(last(messages).structured_output, { sum: 42 });
        if (name === 'agents') assert(init(messages).agents.includes('test-runner'));
      } catch (error) { failed.push(`${name}: ${error.message}`); }
    }
    assert.deepEqual(failed, []);
    process.env.CLAUDE_CONFIG_DIR = join(process.env.HOME, '.claude');
    const listed = await listSessions({ dir: WORKSPACE, limit: 50 });
    assert.equal(listed.length, Object.keys(EXAMPLES()).length);
    assert.equal((await listSessions({ dir: WORKSPACE, limit: 50, offset: 50 })).length, 0);
  },
  async describes_the_session() {
    const messages = await ask('hello', {
      plugins: [{ type: 'local', path: PLUGIN }],
      agents: { helper: { description: 'Helps', prompt: 'You help.', tools: ['Glob'] } },
      skills: ['fix'], title: 'A title', settingSources: ['project'], maxTurns: 5, effort: 'low',
      thinking: { type: 'enabled', budgetTokens: 2000 }, betas: ['context-1m-2025-08-07'], debug: true,
      permissionMode: 'default', permissionPrompts: 'none', includePartialMessages: true, includeHookEvents: true,
      forwardSubagentText: true, promptSuggestions: true, agentProgressSummaries: true, persistSession: false,
      taskBudget: { total: 30000 }, additionalDirectories: [PLUGIN], strictMcpConfig: true, verbatimPrompts: true,
      toolConfig: { askUserQuestion: { previewFormat: 'html' } }, planModeInstructions: 'Plan.', toolAliases: { A: 'B' },
      sandbox: { enabled: true, failIfUnavailable: false }, settings: { permissions: { deny: ['WebFetch'] } },
      managedSettings: { permissions: { deny: ['WebSearch'] } }, fallbackModel: 'other', maxBudgetUsd: 5,
      perTaskStopAffordance: true, env: { ...process.env }, executableArgs: [],
    });
    const first = init(messages);
    assert.equal(first.cwd, WORKSPACE);
    assert(first.agents.includes('helper'));
    assert.deepEqual(first.plugins.map((one) => one.name), ['tools']);
    assert(first.skills.includes('tools:fix'));
    assert.equal(last(messages).result, 'All done.');
    for (const name of ['--task-budget', 'planModeInstructions', 'toolAliases', 'promptSuggestions'])
      assert(told.includes(`${name} is ignored`), name);
  },
  async plugins_and_servers_come_by_initialize() {
    const { session, say, end } = talk({
      plugins: [{ type: 'local', path: PLUGIN }], pluginDelivery: 'initialize', mcpServersDelivery: 'initialize',
      mcpServers: { nothing: { command: 'false' } },
    });
    const messages = await say('hello');
    const answer = await session.initializationResult();
    assert.equal(answer.plugins_applied, true);
    assert.equal(answer.mcp_servers_applied, true);
    assert.deepEqual(init(messages).mcp_servers.map((one) => one.status), ['failed']);
    end();
  },
  async prompts_have_images() {
    const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: PIXEL } };
    const uuid = randomUUID();
    const messages = await ask(once(user([{ type: 'text', text: 'what is it?' }, image], { uuid })));
    assert.equal(last(messages).result, 'All done.');
    assert.deepEqual(last(messages).user_message_uuids, [uuid]);
  },
  async permissions_change_with_answers() {
    const asked = [];
    const canUseTool = async (name, input, { suggestions, toolUseID }) => {
      asked.push([name, input.command]);
      assert(toolUseID && suggestions.length);
      return { behavior: 'allow', updatedInput: input, updatedPermissions: suggestions };
    };
    const { say, end } = talk({ canUseTool });
    await say('touch a file');
    const messages = await say('touch a file again');
    assert.deepEqual(asked, [['Bash', 'touch first.txt']]);
    assert(existsSync(join(WORKSPACE, 'first.txt')));
    assert.equal(last(messages).is_error, false);
    end();
  },
  async questions_are_answered() {
    const canUseTool = async (name, input) => {
      assert.equal(name, 'AskUserQuestion');
      return { behavior: 'allow', updatedInput: { ...input, answers: { [input.questions[0].question]: 'red' } } };
    };
    const messages = await ask('ask me', { canUseTool });
    assert.equal(last(messages).result, 'It is red.');
  },
  async sessions_fork_and_resume_at_a_message() {
    const sessionId = randomUUID();
    const first = await ask('remember apples', { sessionId });
    assert.equal(last(first).session_id, sessionId);
    const resumeSessionAt = first.filter((one) => one.type === 'assistant').at(-1).uuid;
    const fork = await ask('again', { resume: sessionId, forkSession: true, resumeSessionAt });
    assert.notEqual(last(fork).session_id, sessionId);
    const same = await ask('again', { resume: sessionId, resumeSessionAt });
    assert.equal(last(same).session_id, sessionId);
    const latest = await ask('again', { continue: true });
    assert([sessionId, last(fork).session_id].includes(last(latest).session_id));
  },
  async files_are_rewound() {
    const { session, say, end } = talk({ enableFileCheckpointing: true, permissionMode: 'acceptEdits' });
    const uuid = randomUUID();
    await say('write it', { uuid });
    const file = join(WORKSPACE, 'note.txt');
    assert.equal(readFileSync(file, 'utf8'), 'one\ntwo\n');
    const preview = await session.rewindFiles(uuid, { dryRun: true });
    assert.deepEqual([preview.canRewind, preview.filesChanged, preview.deletions], [true, [file], 2]);
    assert(existsSync(file));
    assert.equal((await session.rewindFiles(uuid)).canRewind, true);
    assert(!existsSync(file));
    end();
  },
  async a_client_controls_its_session() {
    const { session, say, end } = talk({});
    await say('hello');
    assert((await session.supportedCommands()).some((one) => one.name === 'run-a-team'));
    assert((await session.supportedModels()).some((one) => one.value === 'other'));
    assert((await session.supportedAgents()).some((one) => one.name === 'explore'));
    assert.equal(typeof (await session.accountInfo()).apiKeySource, 'string');
    assert.deepEqual(await session.mcpServerStatus(), []);
    assert((await session.getContextUsage()).totalTokens > 0);
    await session.setModel('other');
    assert.equal(last(await say('which model?')).result, 'The other one.');
    await session.setModel();
    assert.equal((await session.setPermissionMode('acceptEdits')).mode, 'acceptEdits');
    await session.setMaxThinkingTokens(2000);
    await session.setMaxThinkingTokens(null, 'omitted');
    await session.applyFlagSettings({ permissions: { defaultMode: 'default' } });
    assert((await session.reloadSkills()).skills.length);
    const reloaded = await session.reloadPlugins();
    assert.deepEqual([reloaded.plugins, reloaded.mcpServers, reloaded.error_count], [[], [], 0]);
    assert(reloaded.agents.some((one) => one.name === 'explore'));
    assert.equal(await session.readFile('x'), null);
    const turn = say('wait long');
    await new Promise((resolve) => { setTimeout(resolve, 1500); });
    assert.deepEqual((await session.interrupt()).still_queued, []);
    assert.equal(last(await turn).is_error, false);
    for (const [call, reason] of [
      [() => session.reloadPlugins({ addPlugins: [{ type: 'local', path: '/x' }] }), 'when the session starts'],
      [() => session.backgroundTasks(), 'foreground'],
      [() => session.seedReadState('x', 1), 'read the file'],
      [() => session.stopTask('nobody'), 'no agent'],
      [() => session.rewindFiles(randomUUID()), 'no copies of files'],
      [() => session.updateSettings('localSettings', {}), 'settings files are not written'],
      [() => session.toggleMcpServer('x', false), 'no MCP servers'],
      [() => session.reconnectMcpServer('x'), 'no MCP servers'],
      [() => session.reloadOutputStyles(), 'control request'],
      [() => session.readMcpResource('x', 'ui://x'), 'control request'],
      [() => session.setMcpPermissionModeOverride('x', null), 'control request'],
    ]) await assert.rejects(call, (error) => error.message.includes(reason), reason);
    const late = createSdkMcpServer({ name: 'late', tools: [tool('one', 'One', {}, async () => ({ content: [] }))] });
    assert.deepEqual((await session.setMcpServers({ late })).added, ['late']);
    assert.deepEqual((await session.mcpServerStatus()).map((one) => one.status), ['connected']);
    assert.deepEqual((await session.setMcpServers({})).removed, ['late']);
    end();
  },
  async servers_hooks_and_schemas_work() {
    const add = tool('add', 'Add', { a: z.number(), b: z.number() }, async ({ a, b }) => (
      { content: [{ type: 'text', text: `${a + b}` }] }));
    const hooked = [];
    const messages = await ask('add them', {
      mcpServers: { calc: createSdkMcpServer({ name: 'calc', tools: [add] }) }, allowedTools: ['mcp__calc__add'],
      outputFormat: { type: 'json_schema', schema: { type: 'object', required: ['sum'] } },
      hooks: { PreToolUse: [{ matcher: 'mcp__.*', hooks: [async (input) => { hooked.push(input.tool_name); return {}; }] }] },
    });
    assert.deepEqual(hooked, ['mcp__calc__add']);
    assert.deepEqual(last(messages).structured_output, { sum: 42 });
  },
  async unsupported_options_are_refused() {
    for (const [more, reason] of [
      [{ projectConfigRoot: WORKSPACE }, 'its own folder'],
      [{ extraArgs: { 'no-such-option': null } }, 'No such option'],
      [{ resume: 'no-such-session' }, 'no session'],
      [{ resumeSessionAt: randomUUID() }, 'requires -c or -r'],
    ]) {
      await assert.rejects(() => ask('hello', more), (error) => error.message.includes(reason), reason);
    }
    await assert.rejects(() => prewarm({ options: options() }), (error) => error.message.includes('call query() instead'));
  },
};

const wanted = process.argv.slice(2);
for (const [name, check] of Object.entries(checks)) {
  if (wanted.length && !wanted.includes(name)) continue;
  told = '';
  let detail = '';
  try { await check(); } catch (error) { detail = `${error.stack}\n${told}`; }
  process.stdout.write(`${JSON.stringify({ name, detail })}\n`);
}
process.exit(0);
