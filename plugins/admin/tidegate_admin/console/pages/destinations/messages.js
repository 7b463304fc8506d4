// The messages of a queue: browse them, look at one closely, move, retry or purge some, and publish a new one.

import { act, goOver, look } from '../../api.js';
import { KEEP, asked, followed, keptUntil } from '../../dialogs.js';
import { button, el, facts } from '../../dom.js';
import * as format from '../../format.js';
import { complain, tell } from '../../notices.js';
import { Pager, Table } from '../../table.js';
import { bodyView, glimpse } from './bodies.js';

const ROWS = 25;
const GLIMPSE_BYTES = 256;
const BODY_BYTES = 1024 * 1024;
const FROM = 'original-destination';
const WHY = 'dead-letter-reason';

/** The value of a header; the last one, which is the gateway's where it adds one. */
function header(row, name) {
  return row.headers.findLast(([key]) => key === name)?.[1] ?? '';
}

/** A card with the messages of a queue. changed: called after a change. Returns {element, load, only}. */
export function messages(destination, { signal, changed, isDead, isKept }) {
  const chosen = new Set();
  let rows = [];
  const selector = el('input', { type: 'search', id: 'selector', placeholder: 'kind = \'test\' AND priority > 4', spellcheck: 'false' });
  const table = new Table({
    caption: 'Messages', key: (row) => String(row.sequence), chosen, choose: showChosen,
    columns: isDead ? [...COLUMNS.slice(0, 1), ...DEAD, ...COLUMNS.slice(1)] : COLUMNS,
    empty: 'There are no messages.',
  });
  const pager = new Pager(() => load(), 0);
  const problem = el('p', { class: 'problem', role: 'alert' });
  const closely = el('div');
  const some = el('div', { class: 'actions', role: 'toolbar', 'aria-label': 'Chosen messages' });
  const element = el('section', { class: 'card' },
    el('div', { class: 'head' }, el('h2', {}, 'Messages'), button('Refresh', () => load())),
    el('form', { class: 'tools', role: 'search', onsubmit: (event) => {
      event.preventDefault();
      pager.restart();
      chosen.clear();
      load();
    } }, el('label', { for: 'selector' }, 'Selector'), selector, el('button', { type: 'submit' }, 'Filter')),
    problem, some, table.element, pager.element, closely);

  element.addEventListener('click', (event) => {
    const link = event.target.closest('a[href^="#message-"]');
    if (!link) return;
    event.preventDefault();
    open(Number(link.hash.slice('#message-'.length)));
  });

  async function load() {
    const fields = { destination, selector: selector.value.trim(), after: pager.after, limit: ROWS, body_bytes: GLIMPSE_BYTES };
    try {
      const page = await look('browse-messages', fields, signal);
      problem.textContent = '';
      rows = page.rows;
      table.update(rows);
      const first = pager.before.length * ROWS + 1;
      pager.update(page.next, rows.length ? `${format.count(first)} to ${format.count(first + rows.length - 1)}` : '');
      showChosen();
    } catch (error) {
      if (!signal.aborted) problem.textContent = error.message;
    }
  }

  async function open(sequence) {
    try {
      const page = await look('browse-messages', { destination, after: sequence - 1, limit: 1, body_bytes: BODY_BYTES }, signal);
      const row = page.rows.find((item) => item.sequence === sequence);
      closely.replaceChildren(row ? message(row, () => closely.replaceChildren()) : el('p', { role: 'status' }, 'That message is no longer here.'));
      closely.querySelector('h3')?.focus();
    } catch (error) {
      if (!signal.aborted) complain(error);
    }
  }

  function showChosen() {
    const many = format.counted(chosen.size, 'chosen message');
    some.hidden = chosen.size === 0;
    if (some.hidden) return;
    const buttons = [button('Purge chosen …', () => purge(), { class: 'danger' })];
    buttons.unshift(isKept ? button('Undo chosen', () => undo()) : button('Move chosen …', () => move()));
    if (isDead) buttons.unshift(button('Retry chosen', () => retry()));
    some.replaceChildren(el('span', { role: 'status' }, `${many}:`), ...buttons);
  }

  /** Handles those of the chosen ones that are still there. */
  async function each(request, fields, past) {
    const sequences = [...chosen].map(Number);
    let count = 0;
    let note = '';
    try {
      ({ note } = await followed(`${destination}: chosen messages are being ${past}`, (told, stop) => goOver(request, { ...fields, sequences }, (number) => {
        count = number;
        told(`${format.counted(count, 'message')} so far`);
      }, stop)));
    } catch (error) {
      complain(error);
    }
    tell(`${format.counted(count, 'message')} ${count === 1 ? 'was' : 'were'} ${past}. ${note}`.trim());
    chosen.clear();
    closely.replaceChildren();
    await load();
    changed();
  }

  const retry = () => each('retry-messages', { destination }, 'moved back');
  const undo = () => each('undo-purge', { kept: destination }, 'brought back');

  async function move() {
    const values = await asked({
      title: `Move ${format.counted(chosen.size, 'chosen message')} of ${destination}`, action: 'Move',
      fields: [{ name: 'target', label: 'To queue', isRequired: true, hint: 'It must exist.' }],
    });
    if (!values) return;
    const target = values.target.includes('://') ? values.target : `queue://${values.target}`;
    await each('move-messages', { destination, target }, `moved to ${target}`);
  }

  async function purge() {
    const many = format.counted(chosen.size, 'chosen message');
    const values = await asked({
      title: `Purge ${many}?`, isDangerous: true, action: `Purge ${many}`, fields: isKept ? [] : [KEEP],
      text: `This removes ${many} of ${destination}.${isKept ? ' This cannot be undone.' : ''}`,
    });
    if (values) await each('purge-destination', { destination, keep_until: keptUntil(values.keep) }, 'purged');
  }

  /** Show only those that *text* selects. */
  async function only(text) {
    selector.value = text;
    pager.restart();
    chosen.clear();
    await load();
    selector.scrollIntoView({ block: 'center' });
    selector.focus();
  }

  showChosen();
  return { element, load, only };
}

const COLUMNS = [
  { head: 'Number', cell: (row) => [{ text: String(row.sequence), href: `#message-${row.sequence}`, kind: 'digits' }] },
  { head: 'Received', cell: (row) => [{ text: format.ago(row.received_at), title: format.moment(row.received_at) }] },
  { head: 'Body', cell: (row) => [{ text: glimpse(row), kind: 'bytes' }] },
  { head: 'Size', isNumber: true, cell: (row) => format.bytes(row.size) },
  { head: 'State', cell: (row) => [
    row.is_in_flight && { text: 'in flight', kind: 'tag' },
    row.delivery_count > 0 && { text: `handed out ${format.count(row.delivery_count)} times`, kind: 'tag warn' },
    !row.persistent && { text: 'not persistent', kind: 'tag' },
  ].filter(Boolean) },
];

const DEAD = [
  { head: 'From', cell: (row) => [{ text: header(row, FROM), kind: 'name' }] },
  { head: 'Why', cell: (row) => header(row, WHY) },
];

function message(row, close) {
  const expires = row.expires_at ? format.moment(row.expires_at) : 'never';
  const correlation = row.correlation_data === null ? null : atob(row.correlation_data);
  return el('article', { class: 'message' },
    el('div', { class: 'head' }, el('h3', { tabindex: '-1' }, `Message ${row.sequence}`), button('Close', close)),
    facts([
      ['Received', format.moment(row.received_at)], ['Expires', expires], ['Priority', String(row.priority)],
      ['Persistent', row.persistent ? 'yes' : 'no'], ['Came by', row.protocol], ['Client id', row.client_id], ['User', row.owner],
      ['Content type', row.content_type], ['Correlation', correlation], ['Reply to', row.reply_to],
      ['Handed out', `${format.count(row.delivery_count)} times${row.is_in_flight ? ', in flight now' : ''}`],
    ], 'row'),
    el('h3', {}, 'Headers'),
    row.headers.length ? facts(row.headers.map(([name, value]) => [name, el('code', {}, value)])) : el('p', { class: 'quiet' }, 'none'),
    bodyView(row));
}

/** Ask for a message and publish it. Resolves to true when it is durable. */
export async function publish(destination) {
  const values = await asked({
    title: `Publish to ${destination}`, action: 'Publish', fields: [
      { name: 'body', label: 'Body', kind: 'area' },
      { name: 'contentType', label: 'Content type', hint: 'For example application/json. Empty: none.' },
      { name: 'headers', label: 'Headers', kind: 'area', rows: 3, hint: 'One per line: name:value' },
      { name: 'priority', label: 'Priority', kind: 'number', value: 4, max: 9 },
      { name: 'persistent', label: 'Persistent', kind: 'check', value: true },
    ],
    submit: ({ body, contentType, headers, priority, persistent }) => act('publish-message', {
      destination, body: encoded(body), content_type: contentType || null, headers: pairs(headers), priority, persistent,
    }),
  });
  if (values) tell(`The message was published to ${destination}, and is durable.`);
  return Boolean(values);
}

function encoded(text) {
  let bytes = '';
  for (const byte of new TextEncoder().encode(text)) bytes += String.fromCharCode(byte);
  return btoa(bytes);
}

function pairs(text) {
  return text.split('\n').filter((line) => line.trim()).map((line) => {
    const colon = line.indexOf(':');
    if (colon < 1) throw new Error(`"${line}" is not a header: write name:value`);
    return [line.slice(0, colon).trim(), line.slice(colon + 1).trim()];
  });
}
