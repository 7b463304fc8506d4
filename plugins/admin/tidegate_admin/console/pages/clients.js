// Who is connected, and what outlives connections: sessions and subscriptions.

import { act, look } from '../api.js';
import { asked, confirmed } from '../dialogs.js';
import { button, el, facts, tag } from '../dom.js';
import * as format from '../format.js';
import { list } from '../list.js';
import { complain, tell } from '../notices.js';
import { every } from '../poll.js';
import { Table } from '../table.js';
import { addressOf } from './destinations/destinations.js';

const EVERY_MS = 3000;
const USUAL = ['name', 'User and client id'];
const HINT = 'Any part; upper or lower case does not matter.';

/** What a connection waits for, in words. */
const WAITS = {
  handshake: 'its handshake is not finished',
  rights: 'its rights are being decided',
  unread: 'it does not read what it is sent',
  'in-flight': 'it has reached its limit of unacknowledged messages',
  acknowledgements: 'a subscription waits for acknowledgements',
  'full-list': 'a queue that it sent to is full',
  store: 'the store has not yet written what was accepted',
  rate: 'its user sent more than the rate limit allows',
  stopping: 'the gateway is stopping',
};

const waitTag = (reason) => ({ text: reason, kind: 'tag warn', title: WAITS[reason] });
const room = ({ used, limit }) => (limit ? `${format.bytes(used)} of ${format.bytes(limit)}` : format.bytes(used));
const whose = (row) => row.client_id || row.principal || 'nobody';

export const connections = { show: (root, place, signal) => list(root, place, signal, {
  page: 'connections', title: 'Connections', request: 'list-connections', key: (row) => String(row.number), columns: [
    { head: 'Client', sort: 'name', cell: (row) => [{ text: row.client_id || `number ${row.number}`, href: `#/connection/${row.number}`, kind: 'name' }] },
    { head: 'User', cell: (row) => row.principal },
    { head: 'Protocol', cell: (row) => `${row.protocol} ${row.version}` },
    { head: 'Address', cell: (row) => [{ text: row.address, kind: 'digits' }] },
    { head: 'A second', sort: 'rate', isNumber: true, cell: (row) => format.rate(row.per_second) },
    { head: 'In flight', sort: 'in-flight', isNumber: true, cell: (row) => format.count(row.in_flight) },
    { head: 'Unread', sort: 'unread', isNumber: true, cell: (row) => format.bytes(row.unread_bytes) },
    { head: 'Held', sort: 'held', isNumber: true, cell: (row) => format.bytes(row.held_bytes) },
    { head: 'Waits for', cell: (row) => row.waits.map(waitTag) },
  ],
  sorts: [USUAL, ['unread', 'Unread, most first'], ['in-flight', 'In flight, most first'], ['held', 'Held, most first'], ['rate', 'Messages a second, most first']],
  hint: `User, client id or address. ${HINT}`, nothing: 'No client is connected.',
}) };

export const connection = { show(root, place, signal) {
  const number = Number(place.what);
  const numbers = el('div');
  const waits = el('ul', { class: 'conditions' });
  const served = new Table({ caption: 'Subscriptions', key: (row) => row.key, columns: SERVED, empty: 'It subscribes to nothing.' });
  const heading = el('h1', {}, `Connection ${place.what}`);
  detail(root, { up: ['connections', 'Connections'], heading, signal, parts: [
    el('div', { class: 'actions' }, button('End connection …', end, { class: 'danger' })), waits,
    el('section', { class: 'card' }, numbers), el('section', { class: 'card' }, el('h2', {}, 'Subscriptions'), served.element),
  ], load: async () => {
    const found = await look('show-connection', { connection: number }, signal);
    const { row } = found;
    heading.textContent = `Connection ${number}: ${whose(row)}`;
    waits.replaceChildren(...found.waits.map(({ reason, what }) => el('li', { class: 'warn' }, `Waits: ${WAITS[reason]}${what ? ` (${what})` : ''}.`)));
    served.update(found.served);
    numbers.replaceChildren(facts([
      ['User', row.principal], ['Client id', row.client_id], ['Protocol', `${row.protocol} ${row.version}`], ['Address', row.address],
      ['Listener', row.listener], ['Certificate', row.certificate], ['Connected', format.ago(row.connected_at)],
      ['Session', found.session && el('a', { href: `#/session/${encodeURIComponent(found.session)}` }, 'its session')],
      ['Given', format.counted(row.delivered, 'message')], ['Confirmed', format.count(row.confirmed)], ['A second', format.rate(row.per_second)],
      ['In flight', format.counted(row.in_flight, 'message')], ['Not read', format.bytes(row.unread_bytes)],
      ['Transactions', format.count(found.transactions)], ['Held', room(found.held)], ['In flight, memory', room(found.in_flight)],
      ['Held for its user', room(found.user_held)], ['In flight of its user', room(found.user_in_flight)],
    ], 'row'));
  } });

  async function end() {
    const isSure = await confirmed({
      title: `End ${heading.textContent}?`, isDangerous: true, action: 'End connection',
      text: 'Its client is told that an operator ended it, and may connect again. Its session stays; its will is published.',
    });
    if (isSure) await done(act('end-connection', { connection: number }), `${heading.textContent} was ended.`, 'connections');
  }
} };

const SERVED = [
  { head: 'Subscription', cell: (row) => row.key },
  { head: 'To', cell: (row) => [{ text: row.destination, href: addressOf(row.destination), kind: 'name' }] },
  { head: 'Waiting', isNumber: true, cell: (row) => format.count(row.waiting) },
  { head: 'In flight', isNumber: true, cell: (row) => (row.in_flight_max ? `${format.count(row.in_flight)} of ${format.count(row.in_flight_max)}` : format.count(row.in_flight)) },
  { head: 'Oldest in flight', cell: (row) => format.ago(row.oldest_at) },
];

export const sessions = { show: (root, place, signal) => list(root, place, signal, {
  page: 'sessions', title: 'Sessions', request: 'list-sessions', key: (row) => row.key, columns: [
    { head: 'Client', sort: 'name', cell: (row) => [{ text: row.client_id, href: `#/session/${encodeURIComponent(row.key)}`, kind: 'name' }] },
    { head: 'User', cell: (row) => row.principal },
    { head: 'Client is', sort: 'away', cell: (row) => (row.connection === null
      ? [{ text: `away for ${format.ago(row.left_at).replace(' ago', '')}`, kind: 'tag' }]
      : [{ text: 'connected', kind: 'tag good' }]) },
    { head: 'Pending', sort: 'pending', isNumber: true, cell: (row) => format.count(row.pending) },
    { head: 'Subscriptions', isNumber: true, cell: (row) => format.count(row.subscriptions + row.attached) },
    { head: 'In flight', isNumber: true, cell: (row) => format.count(row.in_flight) },
    { head: 'Kept', cell: (row) => (row.expiry_s === null ? 'for ever' : format.duration(row.expiry_s)) },
  ],
  sorts: [USUAL, ['pending', 'Pending, most first'], ['away', 'Away, longest first']],
  choices: [{ name: 'away', label: 'Which', options: [['', 'All'], ['true', 'Whose client is away']] }],
  hint: `User or client id. ${HINT}`, nothing: 'There are no sessions: MQTT clients have one.',
}) };

export const session = { show(root, place, signal) {
  const key = place.what;
  const heading = el('h1', {}, 'Session');
  const numbers = el('div');
  const kept = new Table({ caption: 'Subscriptions', key: (row) => String(row.number), columns: SUBSCRIPTIONS, empty: 'None has its own list.' });
  const attached = el('div');
  detail(root, { up: ['sessions', 'Sessions'], heading, signal, parts: [
    el('div', { class: 'actions' }, button('Delete session …', remove, { class: 'danger' })), el('section', { class: 'card' }, numbers),
    el('section', { class: 'card' }, el('h2', {}, 'Subscriptions'), kept.element, attached),
  ], load: async () => {
    const { row, subscriptions: found, attached: others } = await look('show-session', { session: key }, signal);
    heading.textContent = `Session of ${whose(row)}`;
    kept.update(found);
    attached.replaceChildren(...others.map((text) => el('p', {}, el('code', {}, text))));
    numbers.replaceChildren(facts([
      ['User', row.principal], ['Client id', row.client_id], ['Protocol', row.protocol],
      ['Connection', row.connection !== null && el('a', { href: `#/connection/${row.connection}` }, `number ${row.connection}`)],
      ['Away since', format.moment(row.left_at)], ['Kept', row.expiry_s === null ? 'for ever' : format.duration(row.expiry_s)],
      ['Pending', format.count(row.pending)], ['In flight', format.count(row.in_flight)], ['Will', row.has_will ? 'yes' : 'none'],
    ].filter(([, value]) => value !== false), 'row'));
  } });

  async function remove() {
    const values = await asked({
      title: `Delete the ${heading.textContent.toLowerCase()}?`, action: 'Delete', isDangerous: true,
      text: 'Its subscriptions end, and the messages that wait in them are lost.',
      fields: [{ name: 'with_connection', label: 'Even if its client is connected: the connection is ended first', kind: 'check' }],
      submit: (wanted) => act('delete-session', { session: key, ...wanted }),
    });
    if (values) left(`${heading.textContent} was deleted. ${values.note}`, 'sessions');
  }
} };

const SUBSCRIPTIONS = [
  { head: 'Filter', cell: (row) => [{ text: row.filter, href: `#/subscription/${row.number}`, kind: 'name' }] },
  { head: 'Client', sort: 'name', cell: (row) => row.client_id || (row.share_group && `shared: ${row.share_group}`) },
  { head: 'Name', cell: (row) => row.name },
  { head: 'User', cell: (row) => row.principal },
  { head: 'Pending', sort: 'pending', isNumber: true, cell: (row) => format.count(row.pending) },
  { head: 'In flight', isNumber: true, cell: (row) => format.count(row.in_flight) },
  { head: 'Memory', sort: 'memory', isNumber: true, cell: (row) => format.bytes(row.memory_bytes) },
  { head: 'State', cell: (row) => [
    row.durable && { text: 'durable', kind: 'tag' }, row.is_paging && { text: 'from pages', kind: 'tag warn' },
    row.is_full && { text: 'full', kind: 'tag bad' }, row.dropped > 0 && { text: `${format.count(row.dropped)} lost`, kind: 'tag warn' },
  ].filter(Boolean) },
];

export const subscriptions = { show: (root, place, signal) => list(root, place, signal, {
  page: 'subscriptions', title: 'Subscriptions', request: 'list-subscriptions', key: (row) => String(row.number), columns: SUBSCRIPTIONS,
  sorts: [USUAL, ['pending', 'Pending, most first'], ['memory', 'Memory, most first']],
  choices: [{ name: 'durable', label: 'Which', options: [['', 'All'], ['true', 'Those that outlive their connections']] }],
  hint: `User, client id, name or filter. ${HINT}`, nothing: 'Nobody subscribes to a topic.',
}) };

export const subscription = { show(root, place, signal) {
  const number = Number(place.what);
  const heading = el('h1', {}, 'Subscription');
  const tags = el('span', { class: 'tags' });
  const numbers = el('div');
  const actions = el('div', { class: 'actions' });
  detail(root, { up: ['subscriptions', 'Subscriptions'], heading, beside: tags, signal, parts: [actions, el('section', { class: 'card' }, numbers)], load: async () => {
    const { row, connections: served } = await look('show-subscription', { subscription: number }, signal);
    heading.textContent = `Subscription to ${row.filter}`;
    tags.replaceChildren(...SUBSCRIPTIONS.at(-1).cell(row).map(({ text, kind }) => tag(text, kind.replace('tag', '').trim())));
    if (row.durable && !actions.firstChild) actions.append(button('Delete subscription …', remove, { class: 'danger' }));
    numbers.replaceChildren(facts([
      ['User', row.principal], ['Client id', row.client_id], ['Name', row.name], ['Shared by', row.share_group], ['Protocol', row.protocol],
      ['Selector', row.selector], ['Quality of service', String(row.qos)], ['Pending', format.count(row.pending)], ['In flight', format.count(row.in_flight)],
      ['Memory', format.bytes(row.memory_bytes)],
      ['Served', served.length ? el('span', {}, served.map((item, index) => [index ? ', ' : '', el('a', { href: `#/connection/${item}` }, `connection ${item}`)])) : 'nobody now'],
    ], 'row'));
  } });

  async function remove() {
    const values = await asked({
      title: `Delete the ${heading.textContent.toLowerCase()}?`, action: 'Delete', isDangerous: true, text: 'The messages that wait in it are lost.',
      fields: [{ name: 'with_connection', label: 'Even if its client is connected: the connection is ended first', kind: 'check' }],
      submit: (wanted) => act('delete-subscription', { subscription: number, ...wanted }),
    });
    if (values) left(`${heading.textContent} was deleted. ${values.note}`, 'subscriptions');
  }
} };

/** The frame of a detail page. load: fills it; its errors are shown. */
function detail(root, { up: [page, label], heading, beside, parts, load, signal }) {
  const problem = el('p', { class: 'problem', role: 'alert' });
  const rest = el('div', { class: 'rest' }, parts);
  root.append(el('nav', { 'aria-label': 'You are here' }, el('a', { href: `#/${page}` }, `← ${label}`)), el('div', { class: 'head' }, heading, beside), problem, rest);
  every(EVERY_MS, async () => {
    try {
      await load();
      problem.textContent = '';
      rest.hidden = false;
    } catch (error) {
      if (signal.aborted) return;
      problem.textContent = error.message;
      // Nothing can be done to something that is gone.
      if (error.status === 400) {
        rest.hidden = true;
        beside?.replaceChildren();
      }
    }
  }, signal);
}

function left(text, page) {
  tell(text.trim());
  location.hash = `#/${page}`;
}

async function done(request, text, page) {
  try {
    await request;
    left(text, page);
  } catch (error) {
    complain(error);
  }
}
