// One destination: its state, and what can be done to it.

import { act, goOver, look } from '../../api.js';
import { KEEP, asked, confirmed, followed, keptUntil } from '../../dialogs.js';
import { button, el, facts } from '../../dom.js';
import * as format from '../../format.js';
import { complain, tell } from '../../notices.js';
import { every } from '../../poll.js';
import { Table } from '../../table.js';
import { groups } from './dead_letters.js';
import { addressOf, tagsOf } from './destinations.js';
import { messages, publish } from './messages.js';

const EVERY_MS = 3000;
const PURGED = 20;

const SELECTOR = {
  name: 'selector', label: 'Only messages with (selector)', hint: 'A condition over headers, such as kind = \'test\' AND priority > 4. Empty: all.',
};
/** Queues of purged messages: until when, in microseconds, and from which queue. */
const KEPT = /^queue:\/\/\$purged\.(\d+)\.(.+)$/s;
const COUNT = { name: 'count_max', label: 'At most', kind: 'number', value: '', hint: 'How many messages. Empty: all.' };

export function show(root, place, signal) {
  const destination = place.what;
  const isQueue = destination.startsWith('queue://');
  const kept = KEPT.exec(destination);
  const purged = el('div', { hidden: true });
  const isDead = place.page === 'dead-letter';
  const heading = el('h1', {}, destination);
  const tags = el('span', { class: 'tags' });
  const problem = el('p', { class: 'problem', role: 'alert' });
  const actions = el('div', { class: 'actions', role: 'toolbar', 'aria-label': 'Actions' });
  const numbers = el('div');
  const policy = el('div');
  const feeds = new Table({
    caption: 'Where consumers are fed from', key: (feed) => feed.subscription, columns: FEEDS, empty: 'There is no list of messages now.',
  });
  const browsed = isQueue && messages(destination, { signal, isDead, isKept: Boolean(kept), changed: () => Promise.all([refresh(), showPurged(), grouped && grouped.load()]) });
  const grouped = isDead && groups(destination, { signal, only: browsed.only, changed: () => Promise.all([refresh(), showPurged(), browsed.load()]) });
  const up = isDead ? el('a', { href: '#/dead-letters' }, '← Dead letters') : el('a', { href: '#/destinations' }, '← Destinations');
  const parts = [actions, purged,
    el('section', { class: 'card', 'aria-label': 'Now' }, numbers), ...[grouped, browsed].filter(Boolean).map((part) => part.element),
    el('section', { class: 'card' }, el('h2', {}, 'Where its consumers are fed from'), feeds.element),
    el('section', { class: 'card' }, el('details', {}, el('summary', {}, 'Policy'), policy))];
  const rest = el('div', { class: 'rest' }, parts);
  root.append(el('nav', { 'aria-label': 'You are here' }, up), el('div', { class: 'head' }, heading, tags), problem, rest);

  let shownActions = '';
  async function load() {
    try {
      const found = await look('show-destination', { destination }, signal);
      problem.textContent = found.refused ? `The store takes no messages: ${found.refused}` : '';
      if (rest.hidden && browsed) browsed.load(); // it is there again
      rest.hidden = false;
      tags.replaceChildren(...tagsOf(found.row).map(({ text, kind }) => el('span', { class: kind }, text)));
      numbers.replaceChildren(nowOf(found));
      feeds.update(found.feeds);
      policy.replaceChildren(facts(Object.entries(found.policy).map(([name, value]) => [name.replaceAll('_', ' '), String(value)])));
      // Rebuilt only when they change, so that the focus stays.
      const wanted = JSON.stringify([found.row.kind, found.row.producers_paused, found.row.consumers_paused]);
      if (wanted !== shownActions) actions.replaceChildren(...buttons(found.row));
      shownActions = wanted;
    } catch (error) {
      if (signal.aborted) return;
      problem.textContent = error.message;
      // It is gone: it has no messages, and nothing can be done to it.
      if (error.status === 400) {
        rest.hidden = true;
        tags.replaceChildren();
      }
    }
  }
  const refresh = every(EVERY_MS, load, signal);
  if (browsed) browsed.load();
  showPurged();
  if (grouped) grouped.load();

  function buttons(row) {
    const made = [];
    const isPaused = row.producers_paused || row.consumers_paused;
    if (row.kind === 'temporary-queue') return made;
    if (kept) {
      return [button('Undo purge', () => undo(destination), { class: 'primary' }), button('Purge …', purge, { class: 'danger' }), button('Delete …', remove, { class: 'danger' })];
    }
    if (isDead) made.push(button('Retry all …', retry, { class: 'primary' }));
    made.push(button('Publish …', send));
    if (!isPaused || (row.kind === 'queue' && row.producers_paused !== row.consumers_paused)) made.push(button('Pause …', () => pause(row)));
    if (isPaused) made.push(button('Resume', () => done(act('resume-destination', { destination, ...sidesOf(row) }), 'is resumed')));
    if (!isQueue) return made;
    made.push(button('Move …', () => carry('move-messages', 'Move', 'moved')), button('Copy …', () => carry('copy-messages', 'Copy', 'copied')),
      button('Purge …', purge, { class: 'danger' }), button('Delete …', remove, { class: 'danger' }));
    return made;
  }

  async function done(request, text) {
    try {
      const { note } = await request;
      tell(`${destination} ${text}. ${note}`.trim());
      await refresh();
      return true;
    } catch (error) {
      complain(error);
      return false;
    }
  }

  async function pause(row) {
    const options = [['producers', 'Producers: they are refused, with an error after which they may retry']];
    if (isQueue) options.unshift(['both', 'Producers and consumers'], ['consumers', 'Consumers: they keep their subscriptions but receive nothing']);
    const values = await asked({
      title: `Pause ${destination}?`, action: 'Pause', text: 'It lasts until it is resumed, even across restarts.',
      fields: [{ name: 'sides', label: 'Who', kind: 'choice', options: options.filter(([side]) => !row[`${side}_paused`]) }],
    });
    if (!values) return;
    const sides = values.sides === 'both' ? ['producers', 'consumers'] : [values.sides];
    await done(act('pause-destination', { destination, sides }), 'is paused');
  }

  async function send() {
    if (await publish(destination)) await again();
  }

  async function retry() {
    const { row } = await look('show-destination', { destination });
    const isSure = await confirmed({
      title: `Retry the messages of ${destination}?`, action: 'Retry all',
      text: `Each of its ${format.counted(row.pending, 'pending message')} goes back to the end of the queue that it comes from, and can be delivered again as often as a new one.`,
    });
    if (isSure) await over('retry-messages', { destination }, 'moved back');
  }

  /** Show the current state. */
  async function again() {
    await Promise.all([refresh(), showPurged(), browsed && browsed.load(), grouped && grouped.load()]);
  }

  /** Show what purges of this queue have kept. */
  async function showPurged() {
    if (kept) {
      purged.hidden = false;
      purged.replaceChildren(el('p', { role: 'status' }, `Purged from ${`queue://${kept[2]}`}, and kept until ${format.moment(Number(kept[1]))}.`));
      return;
    }
    if (!isQueue) return;
    try {
      const { rows } = await look('list-purged', { match: destination, limit: PURGED }, signal);
      const own = rows.filter((row) => row.destination === destination);
      purged.hidden = !own.length;
      purged.replaceChildren(...(own.length ? [el('section', { class: 'card' }, el('h2', {}, 'Purged, and kept'), el('ul', { class: 'plain' }, own.map((row) => el('li', { class: 'actions' },
        el('a', { href: addressOf(row.kept) }, format.counted(row.pending, 'message')), `until ${format.moment(row.until)}`,
        button('Undo', () => undo(row.kept), { 'aria-label': `Undo: ${format.counted(row.pending, 'message')}, kept until ${format.moment(row.until)}` })))))] : []));
    } catch (error) {
      if (!signal.aborted) problem.textContent = error.message;
    }
  }

  async function undo(queue) {
    await over('undo-purge', { kept: queue }, 'brought back');
    if (kept) location.hash = addressOf(`queue://${kept[2]}`);
  }

  async function purge() {
    const { keep, ...values } = (await asked({
      title: `Purge ${destination}`, action: 'Continue …', fields: kept ? [SELECTOR, COUNT] : [SELECTOR, COUNT, KEEP],
      text: 'Messages are removed. Messages in flight, and those published from now on, stay.',
    })) ?? {};
    if (values.selector === undefined) return;
    const { row } = await look('show-destination', { destination });
    const which = values.selector ? `those of its ${format.counted(row.pending, 'pending message')} with ${values.selector}` : '';
    const most = values.count_max && values.count_max < row.pending ? values.count_max : row.pending;
    const what = which || (most < row.pending ? `the first ${format.count(most)} of ${format.counted(row.pending, 'pending message')}` : format.counted(row.pending, 'pending message'));
    const isSure = await confirmed({
      title: `Purge ${destination}?`, isDangerous: true,
      text: `This removes ${what} of ${destination}. ${keep ? `They can be brought back ${KEEP.options.find(([value]) => value === keep)[1]}.` : 'This cannot be undone.'}`,
      action: which ? 'Purge those' : `Purge ${format.counted(most, 'message')}`,
    });
    if (isSure) await over('purge-destination', { destination, ...values, keep_until: keptUntil(keep) }, 'purged');
  }

  async function carry(request, word, past) {
    const values = await asked({
      title: `${word} messages of ${destination}`, action: word, fields: [
        { name: 'target', label: 'To queue', isRequired: true, hint: 'It must exist.' }, SELECTOR, COUNT,
      ],
    });
    if (!values) return;
    const target = values.target.includes('://') ? values.target : `queue://${values.target}`;
    await over(request, { ...values, destination, target }, `${past} to ${target}`);
  }

  async function over(request, fields, past) {
    try {
      const { count, isComplete, note } = await followed(`${destination}: messages are being ${past}`, (told, stop) =>
        goOver(request, fields, (number) => told(`${format.counted(number, 'message')} so far`), stop));
      tell(`${format.counted(count, 'message')} of ${destination} ${count === 1 ? 'was' : 'were'} ${past}.${isComplete ? '' : ' It was stopped before the end.'} ${note}`.trim());
    } catch (error) {
      complain(error);
    }
    await again();
  }

  async function remove() {
    const { row } = await look('show-destination', { destination });
    const values = await asked({
      title: `Delete ${destination}?`, action: 'Delete', isDangerous: true,
      text: `It has ${format.counted(row.pending, 'pending message')} and ${format.counted(row.consumers, 'consumer')}.`,
      fields: [
        { name: 'with_messages', label: `Even with messages: ${format.counted(row.pending, 'message')} and those in flight are lost`, kind: 'check' },
        { name: 'with_consumers', label: 'Even with consumers: connections that subscribed to it by name are ended', kind: 'check' },
      ],
      submit: (wanted) => act('delete-destination', { destination, ...wanted }),
    });
    if (!values) return;
    tell(`${destination} was deleted. ${values.note}`);
    location.hash = '#/destinations';
  }
}

function sidesOf(row) {
  return { sides: [row.producers_paused && 'producers', row.consumers_paused && 'consumers'].filter(Boolean) };
}

function nowOf({ row, oldest_at: oldestAt, unstored }) {
  return facts([
    ['Pending', format.count(row.pending)],
    ['In flight', format.count(row.in_flight)],
    ['Consumers', format.count(row.consumers)],
    ['Subscriptions', row.kind === 'topic' ? format.count(row.subscriptions) : null],
    ['Oldest message', oldestAt ? el('span', { title: format.moment(oldestAt) }, format.ago(oldestAt)) : null],
    ['Bodies in the store', row.body_bytes === null ? null : format.bytes(row.body_bytes)],
    ['Memory of cursors', format.bytes(row.memory_bytes)],
    ['At its limit', row.overflow.join(', ') || 'pages'],
    ['Lost at its limit', row.dropped ? format.count(row.dropped) : null],
    ['Not stored', unstored && `${format.counted(unstored.messages, 'message')}, ${format.bytes(unstored.memory_bytes)} in memory, ${format.bytes(unstored.file_bytes)} in files`],
  ], 'row');
}

const FEEDS = [
  { head: 'Subscription', cell: (feed) => feed.subscription || 'the queue' },
  { head: 'From', cell: (feed) => [{ text: feed.is_paging ? 'pages' : 'memory', kind: `tag ${feed.is_paging ? 'warn' : 'good'}` }] },
  { head: 'Since', cell: (feed) => format.moment(feed.since) },
  { head: 'Why', cell: (feed) => feed.why },
  { head: 'Directly', isNumber: true, cell: (feed) => format.count(feed.direct_messages) },
  { head: 'From pages', isNumber: true, cell: (feed) => format.count(feed.paged_messages) },
];
