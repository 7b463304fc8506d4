// The store: how large it is, which files it has, what lives in each and why it is kept.

import { look } from '../api.js';
import { el, facts, tag } from '../dom.js';
import * as format from '../format.js';
import { list } from '../list.js';
import { every } from '../poll.js';
import { Table } from '../table.js';
import { addressOf } from './destinations/destinations.js';

const EVERY_MS = 5000;

const FILES = [
  { head: 'File', sort: 'order', cell: (row) => [{ text: row.name, href: `#/file/${encodeURIComponent(row.name)}`, kind: 'name' }] },
  { head: 'State', cell: (row) => [{ text: row.state, kind: 'tag' }] },
  { head: 'Length', isNumber: true, cell: (row) => format.bytes(row.length) },
  { head: 'Lives in it', isNumber: true, cell: (row) => format.bytes(row.live_bytes) },
  { head: 'Share', sort: 'sparse', isNumber: true, cell: (row) => (row.length ? format.percent(row.live_bytes / row.length) : '') },
  { head: 'Referred to', isNumber: true, cell: (row) => format.count(row.references) },
];

export const store = { show(root, place, signal) {
  const tags = el('span', { class: 'tags' });
  const problem = el('p', { class: 'problem', role: 'alert' });
  const numbers = el('div');
  const rest = el('div', { class: 'rest' });
  const parts = new Table({ caption: 'What it is made of', key: (row) => `${row.kind} ${row.name}`, columns: PARTS, empty: 'Nothing is known.' });
  const unknown = el('p', { class: 'problem', role: 'alert' });
  const made = el('section', { class: 'card', hidden: true }, el('h2', {}, 'What it is made of'), unknown, parts.element);
  root.append(el('div', { class: 'head' }, el('h1', {}, 'Store'), tags), problem, el('section', { class: 'card' }, numbers), made, rest);
  every(EVERY_MS, async () => {
    try {
      const found = await look('show-store', {}, signal);
      problem.textContent = found.problem && `It takes no messages: ${found.problem}`;
      tags.replaceChildren(tag(found.is_writable ? 'writable' : 'read-only', found.is_writable ? 'good' : 'bad'),
        tag(found.is_durable ? 'survives a power cut' : 'does not survive a power cut', found.is_durable ? 'good' : 'warn'));
      numbers.replaceChildren(shown(found));
      made.hidden = !found.offers.includes('parts');
      unknown.textContent = found.parts_problem && `Not known at present: ${found.parts_problem}`;
      parts.update(found.parts);
      if (found.offers.includes('files') && !rest.firstChild) showFiles();
    } catch (error) {
      if (!signal.aborted) problem.textContent = error.message;
    }
  }, signal);
  const showFiles = () => list(rest, place, signal, {
    page: 'store', title: 'Files', level: 'h2', request: 'list-files', columns: FILES, key: (row) => row.name,
    sorts: [['order', 'The store\'s own'], ['sparse', 'Sparsest first']],
    hint: 'A part of the name or the state.', nothing: 'There is no file.',
  });
} };

const PARTS = [
  { head: 'Part', cell: (row) => [{ text: row.kind, kind: 'tag' }] },
  { head: 'Name', cell: (row) => [{ text: row.name, kind: 'name' }] },
  { head: 'On disk', isNumber: true, cell: (row) => (row.disk_bytes === null ? '' : format.bytes(row.disk_bytes)) },
  { head: 'Free in it', isNumber: true, cell: (row) => (row.reusable_bytes === null ? '' : format.bytes(row.reusable_bytes)) },
  { head: 'Rows, about', isNumber: true, cell: (row) => (row.rows === null ? '' : format.count(row.rows)) },
  { head: 'Dead, about', isNumber: true, cell: (row) => (row.dead_rows === null ? '' : format.count(row.dead_rows)) },
  { head: 'State', cell: (row) => [row.state, row.holder && `held by ${row.holder}`, row.expires_at !== null && `until ${format.moment(row.expires_at)} unless it is renewed`].filter(Boolean).join(', ') },
];

function shown(found) {
  const room = ({ used, limit }) => (limit ? `${format.bytes(used)} of ${format.bytes(limit)}` : `${format.bytes(used)}, no limit`);
  return facts([
    ['Messages', format.count(found.messages)], ['On disk', format.bytes(found.disk_bytes)], ['Free in it', format.bytes(found.reusable_bytes)],
    ['Will be taken', found.claimed_bytes ? format.bytes(found.claimed_bytes) : null], ['Counts towards its limit', room(found.used)],
    ['Rows for sinks', found.acknowledged && room(found.acknowledged)], ['Free on disk', found.disk_free === null ? null : format.bytes(found.disk_free)],
    ['Directories', found.directories.length && el('span', {}, found.directories.join(', '))], ['Offers', found.offers.join(', ').replaceAll('_', ' ')],
  ], 'row');
}

export const file = { show(root, place, signal) {
  const problem = el('p', { class: 'problem', role: 'alert' });
  const numbers = el('div');
  const holders = new Table({
    caption: 'What keeps it', key: (row) => `${row.kind} ${row.pending_list} ${row.subscription}`, columns: HOLDERS, empty: 'Nothing keeps it: it will be removed, or takes new messages.',
  });
  root.append(el('nav', { 'aria-label': 'You are here' }, el('a', { href: '#/store' }, '← Store')), el('h1', {}, place.what), problem,
    el('section', { class: 'card' }, numbers), el('section', { class: 'card' }, el('h2', {}, 'What keeps it'), holders.element));
  // Only once: the answer covers everything that lives in it.
  look('explain-file', { file: place.what }, signal).then(({ row, holders: found }) => {
    numbers.replaceChildren(facts(FILES.slice(1).map((column) => [column.head, [column.cell(row)].flat().map((part) => part.text ?? part).join(' ')]), 'row'));
    holders.update(found);
  }).catch((error) => {
    if (!signal.aborted) problem.textContent = error.message;
  });
} };

const HOLDERS = [
  { head: 'What', cell: (row) => row.kind },
  { head: 'Destination', cell: (row) => (row.destination ? [{ text: row.destination, href: addressOf(row.destination), kind: 'name' }] : '') },
  { head: 'Whose', cell: (row) => [row.client_id, row.subscription, row.principal].filter(Boolean).join(' ') },
  { head: 'Messages', isNumber: true, cell: (row) => format.count(row.messages) },
  { head: 'Bytes', isNumber: true, cell: (row) => format.bytes(row.live_bytes) },
  { head: 'The first', cell: (row) => [{ text: row.sequences.slice(0, 3).join(', '), kind: 'digits' }] },
];
