// The HTTP API of this gateway: all that the console knows about it.

import { credentials } from './session.js';

const TIMEOUT_MS = 75_000;
const PREFIX = '../api/v1/';

/** Gets "logged-out" when the credentials are no longer valid. */
export const events = new EventTarget();

/** A failed request. status 0: nobody answered. */
export class Problem extends Error {
  constructor(status, kind, text) {
    super(text);
    this.status = status;
    this.kind = kind;
  }
}

/** A read-only request. List fields are repeated, empty ones left out. */
export function look(request, fields = {}, signal) {
  return answer(PREFIX + request + queryOf(fields), {}, signal);
}

/** A stream of events, as bytes. */
export async function open(name, fields, signal) {
  const response = await asked(PREFIX + name + queryOf(fields), {}, signal);
  if (response.status !== 200) understood(response, await response.text(), []);
  return response.body;
}

function queryOf(fields) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(fields)) {
    if (value === '' || value === null || value === undefined) continue;
    for (const item of Array.isArray(value) ? value : [value]) query.append(name, item);
  }
  const text = query.toString();
  return text && `?${text}`;
}

/** A request that changes something. */
export function act(request, fields, signal) {
  const headers = { 'Content-Type': 'application/json' };
  return answer(PREFIX + request, { method: 'POST', headers, body: JSON.stringify(fields) }, signal);
}

/**
* A request over messages, repeated until it is complete; returns how many it handled, and its note.
* told: called with the number so far. signal: when aborted, the current request finishes and no more follow.
 */
export async function goOver(request, fields, told, signal) {
  let count = 0;
  let rest = { ...fields };
  for (;;) {
    const done = await act(request, rest);
    count += done.count;
    told(count);
    if (done.is_complete || signal?.aborted) return { count, isComplete: done.is_complete, note: done.note };
    rest = { ...rest, after: done.after, through: done.through };
    if (fields.count_max) rest.count_max = fields.count_max - count;
  }
}

/** Whether the gateway is ready; also answers when it is not. */
export function readiness(signal) {
  return answer('../health/ready', {}, signal, [200, 503]);
}

/** The gateway's history; range: one of the server's names. */
export function history(range, signal) {
  return answer(`../history?range=${range}`, {}, signal);
}

async function answer(path, options, signal, good = [200]) {
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  let response;
  let text;
  try {
    response = await asked(path, options, signal ? AbortSignal.any([signal, limit]) : limit);
    text = await response.text();
  } catch (error) {
    if (signal?.aborted || error instanceof Problem) throw error;
    throw new Problem(0, 'Unreachable', 'the gateway does not answer');
  }
  return understood(response, text, good);
}

function asked(path, options, signal) {
  const headers = new Headers(options.headers);
  try {
    if (credentials()) headers.set('Authorization', credentials());
  } catch {
    // No token has such characters: something else was pasted.
    events.dispatchEvent(new Event('logged-out'));
    throw new Problem(401, 'LoginError', 'these are not valid credentials');
  }
  return fetch(path, {
    ...options,
    headers,
    signal,
    // Nothing that the browser remembers, and none of its own password dialogs.
    credentials: 'omit',
    cache: 'no-store',
    redirect: 'error',
  });
}

/** The answer, if its status is a good one; otherwise throws a Problem. */
function understood(response, text, good) {
  let body = {};
  try {
    body = JSON.parse(text);
  } catch {
    throw new Problem(response.status, 'Unreadable', `the answer is not from the gateway (status ${response.status})`);
  }
  if (good.includes(response.status) && body.kind === undefined) return body;
  if (response.status === 401) events.dispatchEvent(new Event('logged-out'));
  throw new Problem(response.status, body.kind ?? '', body.problem ?? `status ${response.status}`);
}
