// All queues and topics: searched, sorted and paged by the gateway.

import { act } from '../../api.js';
import { asked } from '../../dialogs.js';
import { button } from '../../dom.js';
import * as format from '../../format.js';
import { list } from '../../list.js';
import { tell } from '../../notices.js';

const SORTS = [['name', 'Name'], ['pending', 'Pending, largest first'], ['consumers', 'Consumers, most first']];
const KINDS = [['', 'Queues and topics'], ['queue://', 'Queues'], ['topic://', 'Topics']];

/** The address of a destination's page. isDead: as a queue of dead letters. */
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
  const refresh = list(root, place, signal, {
    page: 'destinations', title: 'Destinations', request: 'list-destinations', columns: columns(), key: (row) => row.destination,
    sorts: SORTS, choices: [{ name: 'kind', label: 'Kind', options: KINDS }], fields: ({ match, kind }) => wantedOf(kind, match),
    hint: 'Part of a name, or a filter: orders.*.eu, orders.> (* stands for one level, > for all that follow).', placeholder: 'orders',
    nothing: 'There are no destinations yet. A queue exists from its first message on.',
    head: button('Create queue …', create, { class: 'primary' }),
  });

  async function create() {
    const values = await asked({
      title: 'Create a queue', action: 'Create',
      fields: [{ name: 'name', label: 'Name', isRequired: true, hint: 'Levels are separated by dots: orders.eu' }],
      submit: ({ name }) => act('create-destination', { destination: name.includes('://') ? name : `queue://${name}` }).then(({ note }) => ({ name, note })),
    });
    if (!values) return;
    tell(values.note || `${values.name} was created.`);
    refresh();
  }
}

/** The request's fields: a filter if it looks like one, otherwise a part of the name. */
function wantedOf(kind, text) {
  if (text.includes('://')) return { match: text };
  if (/(^|\.)[*>](\.|$)/.test(text)) return { match: kind + text };
  return { match: kind && `${kind}>`, contains: text };
}
