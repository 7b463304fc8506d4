// All queues and topics: searched, sorted and paged by the gateway.

import { act, look } from '../api.js';
import { asked } from '../dialogs.js';
import { button, el } from '../dom.js';
import * as format from '../format.js';
import { complain, tell } from '../notices.js';
import { every } from '../poll.js';
import { Pager, Table } from '../table.js';

const EVERY_MS = 5000;
const ROWS = 50;
const SORTS = [['name', 'Name'], ['pending', 'Pending, largest first'], ['consumers', 'Consumers, most first']];
const KINDS = [['', 'Queues and topics'], ['queue://', 'Queues'], ['topic://', 'Topics']];

/** The address of one destination's page. isDead: as a queue of dead letters. */
export function addressOf(destination, isDead = false) {
  return `#/${isDead ? 'dead-letter' : 'destination'}/${encodeURIComponent(destination)}`;
}

/** What is special about a row, as tags. */
export function tagsOf(row) {
  const paused = [row.producers_paused && 'producers', row.consumers_paused && 'consumers'].filter(Boolean);
  return [
    row.kind === 'temporary-queue' && { text: 'temporary', kind: 'tag' },
    row.kind === 'topic' && { text: 'topic', kind: 'tag' },
    paused.length && { text: `paused: ${paused.join(', ')}`, kind: 'tag warn' },
    row.is_full && { text: 'full', kind: 'tag bad' },
    row.dropped && { text: `${format.count(row.dropped)} lost`, kind: 'tag warn' },
  ].filter(Boolean);
}

export function columns() {
  return [
    { head: 'Destination', sort: 'name', cell: (row) => [{ text: row.destination, href: addressOf(row.destination), kind: 'name' }] },
    { head: 'Pending', sort: 'pending', isNumber: true, cell: (row) => format.count(row.pending) },
    { head: 'In flight', isNumber: true, cell: (row) => format.count(row.in_flight) },
    { head: 'Consumers', sort: 'consumers', isNumber: true, cell: (row) => format.count(row.consumers) },
    { head: 'Subscriptions', isNumber: true, cell: (row) => (row.kind === 'topic' ? format.count(row.subscriptions) : '') },
    { head: 'Memory', isNumber: true, cell: (row) => format.bytes(row.memory_bytes) },
    { head: 'State', cell: tagsOf },
  ];
}

export function show(root, place, signal) {
  const { query } = place;
  const by = SORTS.some(([name]) => name === query.get('sort')) ? query.get('sort') : 'name';
  const kind = KINDS.some(([name]) => name === query.get('kind')) ? query.get('kind') : '';
  const text = query.get('match') ?? '';

  /** Another search has another address, so that "back" goes back to this one. */
  function go(changed) {
    const fields = { match: search.value.trim(), kind: kinds.value, sort: by, ...changed };
    const wanted = new URLSearchParams(Object.entries(fields).filter(([name, value]) => value && !(name === 'sort' && value === 'name')));
    location.hash = `#/destinations${wanted.size ? `?${wanted}` : ''}`;
  }

  const search = el('input', { type: 'search', id: 'match', placeholder: 'orders', spellcheck: 'false', 'aria-describedby': 'match-hint', onchange: () => go({}) });
  search.value = text;
  const kinds = el('select', { 'aria-label': 'Kind', onchange: () => go({}) }, KINDS.map(([value, label]) => el('option', { value }, label)));
  kinds.value = kind;
  const sorts = el('select', { 'aria-label': 'Order', onchange: () => go({ sort: sorts.value }) }, SORTS.map(([value, label]) => el('option', { value }, label)));
  sorts.value = by;
  const table = new Table({
    caption: 'Destinations', columns: columns(), key: (row) => row.destination, sorting: { by, set: (sort) => go({ sort }) },
    empty: text || kind ? 'No destination is found by that.' : 'There are no destinations yet. A queue is there from its first message on.',
  });
  const pager = new Pager(() => refresh());
  const problem = el('p', { class: 'problem', role: 'alert' });

  root.append(
    el('div', { class: 'head' }, el('h1', {}, 'Destinations'), button('Create queue …', create, { class: 'primary' })),
    el('form', { class: 'tools', role: 'search', onsubmit: (event) => {
      event.preventDefault();
      go({});
    } },
    el('label', { for: 'match' }, 'Search'), search, kinds, sorts, el('button', { type: 'submit' }, 'Find'),
    el('small', { id: 'match-hint' }, 'Part of a name, or a filter: orders.*.eu, orders.> (* stands for one level, > for all that follow). Press / to search.')),
    problem, table.element, pager.element);

  let asking = 0;
  async function load() {
    asking += 1;
    const number = asking;
    const after = pager.after;
    try {
      const page = await look('list-destinations', { ...wantedOf(kind, text), sort: by, after, limit: ROWS }, signal);
      if (number !== asking) return;
      problem.textContent = '';
      table.update(page.rows);
      pager.update(page.next, shown(page.rows.length, pager.before.length));
    } catch (error) {
      if (!signal.aborted) problem.textContent = error.message;
    }
  }

  function shown(rows, pages) {
    return rows ? `${format.count(pages * ROWS + 1)} to ${format.count(pages * ROWS + rows)}` : '';
  }

  async function create() {
    const values = await asked({
      title: 'Create a queue', action: 'Create',
      fields: [{ name: 'name', label: 'Name', isRequired: true, hint: 'Levels are separated by dots: orders.eu' }],
      submit: ({ name }) => act('create-destination', { destination: name.includes('://') ? name : `queue://${name}` }).then(({ note }) => ({ name, note })),
    });
    if (!values) return;
    tell(values.note || `${values.name} is made.`);
    load().catch(complain);
  }

  const refresh = every(EVERY_MS, load, signal);
}

/** What to ask for: a filter when it looks like one, else what the name has in it. */
function wantedOf(kind, text) {
  if (text.includes('://')) return { match: text };
  if (/(^|\.)[*>](\.|$)/.test(text)) return { match: kind + text };
  return { match: kind && `${kind}>`, contains: text };
}
