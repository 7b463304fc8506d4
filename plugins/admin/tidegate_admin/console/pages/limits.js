// What is near its limit, and where lists are fed from.

import * as format from '../format.js';
import { list } from '../list.js';
import { addressOf } from './destinations/destinations.js';

const NEAR = 70;
const AT = 90;

/** Bytes, or a number of things: the option's name says which. */
function unit(option) {
  return option.endsWith('_max') && !option.endsWith('bytes_max') ? format.count : format.bytes;
}

/** Free space must not fall below its limit. */
function bound(row) {
  return `${row.option.endsWith('free_limit') ? 'at least ' : ''}${unit(row.option)(row.limit)}`;
}

function holder(row) {
  if (row.scope === 'destination') return [{ text: row.holder, href: addressOf(row.holder), kind: 'name' }];
  if (row.scope === 'connection') return [{ text: row.holder, href: `#/connection/${row.number}`, kind: 'name' }];
  return row.holder || 'the gateway';
}

const SCOPES = [['', 'Of everybody'], ['gateway', 'Of the gateway'], ['user', 'Of users'], ['connection', 'Of connections'], ['destination', 'Of destinations']];

export const limits = { show: (root, place, signal) => list(root, place, signal, {
  page: 'limits', title: 'Limits', request: 'list-limits', key: (row) => `${row.scope} ${row.holder} ${row.number} ${row.option}`, columns: [
    { head: 'Of', sort: 'name', cell: holder },
    { head: 'Limit', cell: (row) => [{ text: row.option, kind: 'digits' }] },
    { head: 'Used', isNumber: true, cell: (row) => unit(row.option)(row.used) },
    { head: 'At most', isNumber: true, cell: bound },
    { head: 'Share', sort: 'nearest', isNumber: true, cell: (row) => [{ text: format.percent(row.percent / 100), kind: row.percent >= AT ? 'tag bad' : row.percent >= NEAR ? 'tag warn' : '' }] },
    { head: 'Refused', isNumber: true, cell: (row) => format.count(row.refused) },
    { head: 'What happens then', cell: (row) => row.act.replaceAll('`', '') },
  ],
  sorts: [['nearest', 'Nearest first'], ['name', 'Whose it is']],
  choices: [{ name: 'scope', label: 'Whose', options: SCOPES }],
  hint: 'Holder or option, any part.', nothing: 'No limit is set.',
}) };

export const cursors = { show: (root, place, signal) => list(root, place, signal, {
  page: 'cursors', title: 'Cursors', request: 'list-cursors', key: (row) => String(row.number), columns: [
    { head: 'Destination', sort: 'name', cell: (row) => [{ text: row.destination, href: addressOf(row.destination), kind: 'name' }] },
    { head: 'Subscription', cell: (row) => row.feed.subscription },
    { head: 'Cursor', cell: (row) => row.cursor },
    { head: 'Fed from', cell: (row) => [{ text: row.feed.is_paging ? 'pages' : 'memory', kind: `tag ${row.feed.is_paging ? 'warn' : 'good'}` }, row.is_full && { text: 'full', kind: 'tag bad' }].filter(Boolean) },
    { head: 'Pending', sort: 'pending', isNumber: true, cell: (row) => format.count(row.pending) },
    { head: 'Memory', sort: 'memory', isNumber: true, cell: (row) => (row.memory.limit ? `${format.bytes(row.memory.used)} of ${format.bytes(row.memory.limit)}` : format.bytes(row.memory.used)) },
    { head: 'Directly', isNumber: true, cell: (row) => format.count(row.feed.direct_messages) },
    { head: 'From pages', isNumber: true, cell: (row) => format.count(row.feed.paged_messages) },
    { head: 'Why', cell: (row) => row.feed.why },
  ],
  sorts: [['name', 'Destination'], ['memory', 'Memory, most first'], ['pending', 'Pending, most first']],
  choices: [{ name: 'paging', label: 'Which', options: [['', 'All'], ['true', 'Fed from pages']] }],
  hint: 'Destination, client id or name of the subscription, any part.', nothing: 'There are no lists of messages.',
}) };
