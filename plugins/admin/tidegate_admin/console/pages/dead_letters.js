// Queues that messages went to which nobody could handle.

import { look } from '../api.js';
import { el } from '../dom.js';
import * as format from '../format.js';
import { every } from '../poll.js';
import { Pager, Table } from '../table.js';
import { addressOf, tagsOf } from './destinations.js';

const EVERY_MS = 5000;
const ROWS = 50;

const COLUMNS = [
  { head: 'Queue', cell: (row) => [{ text: row.destination, href: addressOf(row.destination, true), kind: 'name' }] },
  { head: 'Dead letters', isNumber: true, cell: (row) => format.count(row.pending) },
  { head: 'Consumers', isNumber: true, cell: (row) => format.count(row.consumers) },
  { head: 'State', cell: tagsOf },
];

export function show(root, _place, signal) {
  const problem = el('p', { class: 'problem', role: 'alert' });
  const table = new Table({
    caption: 'Queues of dead letters', columns: COLUMNS, key: (row) => row.destination,
    empty: 'There are no dead letters: no queue is there that the policies name for them.',
  });
  const pager = new Pager(() => refresh());
  root.append(el('h1', {}, 'Dead letters'),
    el('p', { class: 'quiet' }, 'Messages that were rejected too often, or that a limit dropped with dead-lettering on. In a queue each says where it comes from and why it is here; '
      + 'all or some of them go back, elsewhere, or away.'),
    problem, table.element, pager.element);
  async function load() {
    try {
      const page = await look('list-destinations', { dead_letters: true, sort: 'pending', after: pager.after, limit: ROWS }, signal);
      problem.textContent = '';
      table.update(page.rows);
      pager.update(page.next, '');
    } catch (error) {
      if (!signal.aborted) problem.textContent = error.message;
    }
  }
  const refresh = every(EVERY_MS, load, signal);
}
