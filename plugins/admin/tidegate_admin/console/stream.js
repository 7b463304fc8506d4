// Events as they come. The browser's own EventSource cannot send credentials, so the stream is read here.

import { Problem, events, open } from './api.js';

const AGAIN_MS = 1000;
const AGAIN_MAX_MS = 30_000;

/**
* Follow events after a sequence until signal is aborted; resumes where it was when the connection ends.
 * fields: of the request, after among them. told: called with an event, {missed, is_restarted}, or nothing when it is connected;
* failed: called with what keeps it from going on.
 */
export async function follow(fields, told, failed, signal) {
  let { after } = fields;
  let pause = AGAIN_MS;
  while (!signal.aborted) {
    try {
      const body = await open('events', { ...fields, after }, signal);
      told({});
      pause = AGAIN_MS;
      for await (const { id, name, data } of parsed(body)) {
        if (name === 'end') {
          if (data.kind === 'LoginError') events.dispatchEvent(new Event('logged-out'));
          throw new Problem(0, data.kind, data.problem);
        }
        if (id) after = id;
        told(name === 'missed' ? data : { row: data });
      }
      throw new Problem(0, 'Unreachable', 'the connection ended');
    } catch (error) {
      if (signal.aborted) return;
      failed(error);
    }
    await new Promise((done) => {
      const timer = setTimeout(done, pause);
      signal.addEventListener('abort', () => { clearTimeout(timer); done(); }, { once: true });
    });
    pause = Math.min(pause * 2, AGAIN_MAX_MS);
  }
}

/** HTML, "Interpreting an event stream", as far as this server uses it. */
async function* parsed(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split('\n\n');
      rest = parts.pop();
      for (const part of parts) {
        const found = event(part);
        if (found.data) yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the connection may be gone already
  }
}

function event(text) {
  const found = { id: '', name: '', data: null };
  for (const line of text.split('\n')) {
    if (line.startsWith('id: ')) found.id = line.slice(4);
    if (line.startsWith('event: ')) found.name = line.slice(7);
    if (line.startsWith('data: ')) found.data = JSON.parse(line.slice(6));
  }
  return found;
}
