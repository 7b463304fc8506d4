// Past and new events, newest first.

import { look } from '../api.js';
import { button, el, setText } from '../dom.js';
import * as format from '../format.js';
import { follow } from '../stream.js';
import { Table } from '../table.js';
import { addressOf } from './destinations/destinations.js';

/** Most events that the page shows, and most that wait while it is paused. */
const ROWS = 500;
/** Least time between two changes of the page. */
const SHOW_MS = 250;
const AGAIN_MS = 2000;

const KINDS = ['gateway', 'operator', 'client', 'access', 'destination', 'subscription', 'consumer', 'message', 'limit', 'store', 'sink', 'listener', 'bridge'];
const SEVERITIES = [['info', 'All severities'], ['warning', 'Warnings and worse'], ['error', 'Errors and worse']];
const TAGS = { info: '', warning: 'warn', error: 'bad', critical: 'bad' };

/** What an event is about, as links where it has a page. */
function about(row) {
  const { destination, connection, client, principal, sink, listener } = row.about;
  const parts = [];
  if (destination) parts.push({ text: destination, href: /^(queue|topic):/.test(destination) ? addressOf(destination) : null, kind: 'name' });
  if (connection) parts.push({ text: `connection ${connection}`, href: row.event === 'client-connected' ? `#/connection/${connection}` : null });
  if (client) parts.push({ text: client, kind: 'name' });
  if (principal && principal !== client) parts.push({ text: principal, kind: 'quiet' });
  if (sink) parts.push({ text: sink, href: '#/sinks', kind: 'name' });
  if (listener) parts.push({ text: listener, kind: 'name' });
  return parts.flatMap((part, index) => (index ? [' ', part] : [part]));
}

/** The rest of its text. */
function rest(row) {
  return row.text.replace(/(^|\s)(destination|connection|client|principal|sink|listener)=("(?:[^"\\]|\\.)*"|\S*)/g, '').trim();
}

const COLUMNS = [
  { head: 'When', cell: (row) => [{ text: format.moment(row.at), title: `sequence ${row.sequence}`, kind: 'digits' }] },
  { head: 'Event', cell: (row) => [{ text: row.event, kind: `tag ${TAGS[row.severity]}`, title: `${row.kind}, ${row.severity}` }, row.count > 1 ? ` × ${format.count(row.count)}` : ''] },
  { head: 'About', cell: about },
  { head: 'What', cell: (row) => [{ text: rest(row), title: row.text }] },
];

export function show(root, place, signal) {
  const { query } = place;
  const kind = KINDS.includes(query.get('kind')) ? query.get('kind') : '';
  const severity = SEVERITIES.some(([name]) => name === query.get('severity')) ? query.get('severity') : 'info';
  const text = query.get('match') ?? '';
  const fields = { severity, kinds: kind };
  let rows = [];
  let waiting = [];
  let isPaused = false;
  let timer = 0;
  let following = null;
  let after = 0;

  const search = el('input', { type: 'search', id: 'match', spellcheck: 'false', 'aria-describedby': 'match-hint', onchange: go });
  search.value = text;
  const kinds = select('Kind', [['', 'All kinds'], ...KINDS.map((name) => [name, name])], kind);
  const severities = select('Severity', SEVERITIES, severity);
  const pause = button('Pause', toggle, { 'aria-pressed': 'false' });
  const state = el('span', { class: 'quiet', role: 'status' });
  const missed = el('p', { class: 'quiet', role: 'status', hidden: true });
  const problem = el('p', { class: 'problem', role: 'alert' });
  const table = new Table({ caption: 'Events', columns: COLUMNS, key: (row) => String(row.sequence), empty: text || kind || severity !== 'info' ? 'No event matches.' : 'There are no events yet.' });

  root.append(
    el('div', { class: 'head' }, el('h1', {}, 'Events'), el('div', { class: 'actions' }, state, pause)),
    el('form', { class: 'tools', role: 'search', onsubmit: (event) => {
      event.preventDefault();
      go();
    } }, el('label', { for: 'match' }, 'Search'), search, kinds, severities, el('button', { type: 'submit' }, 'Find'),
    el('small', { id: 'match-hint' }, `Any part of name or text, of the last ${ROWS} events. Press / to search.`)),
    problem, missed, table.element);

  function select(label, options, value) {
    const made = el('select', { 'aria-label': label, onchange: go }, options.map(([name, words]) => el('option', { value: name }, words)));
    made.value = value;
    return made;
  }

  function go() {
    const asked = { match: search.value.trim(), kind: kinds.value, severity: severities.value === 'info' ? '' : severities.value };
    const wanted = new URLSearchParams(Object.entries(asked).filter(([, value]) => value));
    location.hash = `#/events${wanted.size ? `?${wanted}` : ''}`;
  }

  function toggle() {
    isPaused = !isPaused;
    pause.setAttribute('aria-pressed', String(isPaused));
    setText(pause, isPaused ? 'Continue' : 'Pause');
    update();
  }

  function told({ row, missed: count, is_restarted: isRestarted }) {
    if (row) {
      after = row.sequence;
      waiting.push(row);
      if (waiting.length > ROWS) waiting.shift();
    } else if (count || isRestarted) {
      missed.hidden = false;
      setText(missed, isRestarted ? 'The gateway was restarted: events from before that are not kept.'
        : `${format.counted(count, 'event')} came too fast and ${count === 1 ? 'is' : 'are'} not shown.`);
    }
    problem.textContent = '';
    timer ||= setTimeout(update, SHOW_MS);
  }

  function failed(error) {
    problem.textContent = `${error.message}; trying again.`;
    update();
  }

  function update() {
    clearTimeout(timer);
    timer = 0;
    if (signal.aborted) return;
    if (!isPaused) {
      rows = [...waiting.reverse(), ...rows].slice(0, ROWS);
      waiting = [];
      const part = text.toLowerCase();
      table.update(rows.filter((row) => `${row.event} ${row.text}`.toLowerCase().includes(part)));
    }
    const now = problem.textContent ? 'not connected' : 'live';
    setText(state, isPaused ? `paused, ${format.counted(waiting.length, 'event')} ${waiting.length === 1 ? 'waits' : 'wait'}` : now);
  }

  /** Not while nobody looks: what happened meanwhile comes afterwards. */
  function begin() {
    following?.abort();
    following = null;
    if (document.hidden || signal.aborted) return;
    following = new AbortController();
    follow({ ...fields, after }, told, failed, AbortSignal.any([signal, following.signal]));
  }

  async function first() {
    try {
      const page = await look('list-events', { ...fields, newest: true, limit: ROWS }, signal);
      problem.textContent = '';
      waiting = page.rows;
      after = page.next;
      update();
      document.addEventListener('visibilitychange', begin, { signal });
      begin();
    } catch (error) {
      if (signal.aborted) return;
      problem.textContent = `${error.message}; trying again.`;
      setTimeout(() => signal.aborted || first(), AGAIN_MS);
    }
  }
  first();
}
