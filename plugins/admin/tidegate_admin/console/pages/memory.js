// What the gateway holds in memory, and for whom: a tree whose sums add up.

import { look } from '../api.js';
import { el, setText } from '../dom.js';
import * as format from '../format.js';
import { every } from '../poll.js';
import { Table } from '../table.js';
import { addressOf } from './destinations/destinations.js';

const EVERY_MS = 5000;
const CURSORS = 20;

const KINDS = {
  input: 'Incomplete frames and packets', output: 'Written to clients that do not read', transactions: 'Open transactions', wills: 'Wills',
  retained: 'Retained messages', sessions: 'MQTT sessions', subscriptions: 'Subscriptions, without messages', queues: 'Queues, without messages',
  duplicate_ids: 'Duplicate ids', login: 'Sent before the login', packet_ids: 'Packet ids', aliases: 'Topic aliases', rights: 'Rights of clients, cached',
  connections: 'Sockets and clients',
};

export function show(root, _place, signal) {
  const problem = el('p', { class: 'problem', role: 'alert' });
  const branches = new Map();
  const tree = el('ul', { class: 'tree', 'aria-label': 'What is held, by owner' });
  const kinds = new Table({
    caption: 'What is held for clients', key: ([name]) => name, empty: 'Nothing.',
    columns: [{ head: 'What', cell: ([name]) => KINDS[name] ?? name }, { head: 'Bytes', isNumber: true, cell: ([, size]) => format.bytes(size) }],
  });
  root.append(el('h1', {}, 'Memory'),
    el('p', { class: 'quiet' }, 'Memory that the gateway accounts for, by owner. Indented entries are parts of the entry above them. The process itself takes some more. ',
      el('a', { href: '#/limits' }, 'All limits')),
    problem, el('section', { class: 'card' }, el('h2', {}, 'By owner'), tree),
    el('section', { class: 'card' }, el('h2', {}, 'What is held for clients'), kinds.element));

  async function load() {
    try {
      const opened = [...branches.values()].filter((branch) => branch.user && branch.details.open).map(({ user }) => user);
      const [overview, held, cursors, ...users] = await Promise.all([
        look('show-overview', {}, signal), look('show-held', {}, signal), look('list-cursors', { sort: 'memory', limit: CURSORS }, signal),
        ...opened.map((user) => look('show-held', { user }, signal).catch(() => null)),
      ]);
      problem.textContent = '';
      const shown = all(overview, held, cursors.rows, new Map(users.filter(Boolean).map((found) => [found.user, found])));
      fill(tree, [shown], shown.used, '');
      kinds.update(Object.entries(held.kinds).filter(([, size]) => size).sort(([, a], [, b]) => b - a));
    } catch (error) {
      if (!signal.aborted) problem.textContent = error.message;
    }
  }

  /** Update a list of branches in place: open and focused ones stay so. */
  function fill(list, items, whole, path) {
    const wanted = items.map((item) => {
      const key = `${path}/${item.key ?? item.name}`;
      const branch = branches.get(key) ?? made(key, item);
      update(branch, item, whole, key);
      return branch.element;
    });
    for (const child of [...list.children]) {
      if (!wanted.includes(child)) child.remove();
    }
    wanted.forEach((child, index) => {
      if (list.children[index] !== child) list.insertBefore(child, list.children[index] ?? null);
    });
  }

  function made(key, { name, href, parts, user }) {
    const size = el('b');
    const bar = el('span', { class: 'meter', 'aria-hidden': 'true' }, el('span'));
    const row = [el('span', { class: 'what' }, href ? el('a', { href }, name) : name), bar, size];
    const inner = el('ul');
    const details = parts && el('details', { open: path(key) < 3, ontoggle: () => user && details.open && refresh() }, el('summary', {}, el('span', { class: 'row' }, row)), inner);
    const branch = { element: el('li', {}, details ?? el('span', { class: 'row' }, row)), details, inner, size, bar: bar.firstChild, user };
    branches.set(key, branch);
    return branch;
  }

  function update(branch, { used, limit, parts }, whole, key) {
    setText(branch.size, limit ? `${format.bytes(used)} of ${format.bytes(limit)}` : format.bytes(used));
    branch.bar.style.width = `${whole ? 100 * used / whole : 0}%`;
    if (parts) fill(branch.inner, parts, whole, key);
  }

  const refresh = every(EVERY_MS, load, signal);
}

/** How deep a branch is. */
function path(key) {
  return key.split('/').length - 1;
}

/** A branch that is at least the sum of its known parts; the unknown rest is a part, too. */
function branch(name, used, parts, rest, more = {}) {
  const known = parts.reduce((sum, part) => sum + part.used, 0);
  const others = used - known;
  const shown = others > 0 && (parts.length || rest) ? [...parts, { name: rest, used: others }] : parts;
  return { name, used: Math.max(used, known), parts: shown, ...more };
}

function all(overview, held, cursors, users) {
  const some = held.below.filter((one) => one.held.used);
  const flying = held.below.filter((one) => one.in_flight.used);
  const waiting = cursors.filter((row) => row.memory.used);
  const parts = [
    branch('Held for clients', held.held.used, some.map((one) => ofUser(one, 'held', users)), 'others, and the gateway itself', { limit: held.held.limit }),
    branch('Delivered and not acknowledged', held.in_flight.used, flying.map((one) => ofUser(one, 'in_flight', users)), 'others', { limit: held.in_flight.limit }),
    branch('Waiting messages, in cursors', overview.stored_memory.used + overview.unstored_memory.used, waiting.map(ofCursor), 'other queues and subscriptions'),
  ];
  return branch('All', 0, parts, '');
}

function ofUser({ name, ...rooms }, room, users) {
  const { used, limit } = rooms[room];
  const found = users.get(name);
  const parts = (found?.below ?? []).filter((one) => one[room].used)
    .map((one) => ({ name: one.name, key: String(one.number), used: one[room].used, limit: one[room].limit, href: `#/connection/${one.number}` }));
  return branch(name, used, parts, room === 'held' ? 'without a connection: sessions, queues, retained messages' : 'others', { limit, user: name });
}

function ofCursor({ number, destination, feed, memory }) {
  const name = feed.subscription ? `${destination} (${feed.subscription})` : destination;
  return { name, key: String(number), used: memory.used, limit: memory.limit, href: addressOf(destination) };
}
