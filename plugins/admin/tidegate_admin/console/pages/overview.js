// How the gateway is, in one look: readiness, rates, confirmations, backlog, and what is near its limit.

import { look } from '../api.js';
import { Chart } from '../chart.js';
import { el, facts, setText } from '../dom.js';
import * as format from '../format.js';
import { every } from '../poll.js';
import { columns } from './destinations.js';
import { Table } from '../table.js';
import { seen, watching } from '../watch.js';

const LARGEST = 5;
const LARGEST_EVERY_MS = 5000;
const NEAR = 0.7;
const AT = 0.9;

export function show(root, _place, signal) {
  const readiness = el('ul', { class: 'conditions' });
  const tiles = TILES.map((tile) => new Tile(tile));
  const charts = CHARTS.map(({ title, series, unit }) => new Chart(title, series, unit));
  const rooms = el('tbody');
  const gateway = el('div');
  const largest = new Table({
    caption: 'Destinations with the largest backlog', columns: columns().slice(0, 4), key: (row) => row.destination,
    empty: 'There are no destinations yet. A queue is there from its first message on.',
  });
  root.append(el('h1', {}, 'Overview'), readiness,
    el('div', { class: 'tiles' }, tiles.map((tile) => tile.element)),
    el('div', { class: 'charts' }, charts.map((chart) => chart.element)),
    el('div', { class: 'columns' },
      el('section', { class: 'card' }, el('h2', {}, 'Room'), el('table', { class: 'rooms' },
        el('caption', { class: 'unseen' }, 'What is used, and its limit'), rooms)),
      el('section', { class: 'card' }, el('h2', {}, 'Largest backlogs'), largest.element,
        el('p', {}, el('a', { href: '#/destinations?sort=pending' }, 'All destinations'))),
      el('section', { class: 'card' }, el('h2', {}, 'Gateway'), gateway)));

  function draw() {
    const { overview, ready, samples } = seen;
    readiness.replaceChildren(...conditions(ready, overview));
    for (const chart of charts) chart.draw(samples);
    if (!overview) return;
    for (const tile of tiles) tile.update(overview);
    rooms.replaceChildren(...ROOMS.map(([name, of, unit]) => room(name, of(overview), unit)));
    gateway.replaceChildren(about(overview));
  }

  watching.addEventListener('seen', draw, { signal });
  draw();
  every(LARGEST_EVERY_MS, async () => {
    try {
      largest.update((await look('list-destinations', { sort: 'pending', limit: LARGEST }, signal)).rows);
    } catch {
      // The frame says what is wrong.
    }
  }, signal);
}

function conditions(ready, overview) {
  if (!ready) return [];
  const found = [];
  if (ready.phase !== 'running') found.push(['warn', `Not ready: ${ready.status}.`]);
  for (const problem of ready.problems) found.push(['bad', `Not ready: ${problem}.`]);
  if (overview?.problem) found.push(['bad', overview.problem]);
  for (const warning of ready.warnings) found.push(['warn', `Warning: ${warning}.`]);
  if (!found.length) found.push(['good', 'Ready: clients are let in, and what they send is confirmed.']);
  return found.map(([kind, text]) => el('li', { class: kind }, text));
}

class Tile {
  constructor({ title, value, more }) {
    this.read = [value, more];
    this.texts = [el('b'), el('small')];
    this.element = el('section', { class: 'tile card' }, el('h2', {}, title), this.texts);
  }

  update(overview) {
    this.read.forEach((read, index) => setText(this.texts[index], read(overview)));
  }
}

const traffic = (name, word) => ({
  title: `${word} a second`,
  value: (found) => format.rate(found[name].per_second),
  more: (found) => `${format.count(found[name].total)} since the start`,
});

const TILES = [
  traffic('published', 'Published'),
  traffic('delivered', 'Delivered'),
  traffic('acknowledged', 'Acknowledged'),
  {
    title: 'Wait for confirmation, p99',
    value: ({ confirmation }) => (confirmation.count ? format.milliseconds(confirmation.p99_ms) : '–'),
    more: ({ confirmation }) => (confirmation.count
      ? `p50 ${format.milliseconds(confirmation.p50_ms)}, ${format.count(confirmation.count)} in the last minute`
      : 'none in the last minute'),
  },
  {
    title: 'Backlog',
    value: (found) => format.count(found.backlog),
    more: (found) => `messages kept, in ${format.counted(found.queues, 'queue')} and ${format.counted(found.subscriptions, 'subscription')}`,
  },
  {
    title: 'Connections',
    value: (found) => format.count(found.connections.used),
    more: (found) => `${format.counted(found.sessions, 'session')}, ${format.count(found.dropped.total)} messages that no consumer got`,
  },
];

const persecond = (name) => ({ name, value: ({ overview }) => overview[name].per_second });

const CHARTS = [
  { title: 'Messages a second', unit: format.rate, series: ['published', 'delivered', 'acknowledged'].map(persecond) },
  {
    title: 'Wait for confirmation', unit: format.milliseconds,
    series: [
      { name: 'p50', value: ({ overview }) => overview.confirmation.p50_ms },
      { name: 'p99', value: ({ overview }) => overview.confirmation.p99_ms },
    ],
  },
  { title: 'Backlog', unit: format.count, series: [{ name: 'messages', value: ({ overview }) => overview.backlog }] },
];

const ROOMS = [
  ['Store', (found) => found.store, format.bytes],
  ['Memory held for clients', (found) => found.held, format.bytes],
  ['Delivered and not acknowledged', (found) => found.in_flight, format.bytes],
  ['Cursors: messages that are stored', (found) => found.stored_memory, format.bytes],
  ['Cursors: messages that are not', (found) => found.unstored_memory, format.bytes],
  ['Temporary files of cursors', (found) => found.temporary, format.bytes],
  ['Connections', (found) => found.connections, format.count],
];

function room(name, { used, limit }, unit) {
  const share = limit ? used / limit : 0;
  const kind = share >= AT ? 'bad' : share >= NEAR ? 'warn' : '';
  const text = limit ? `${unit(used)} of ${unit(limit)}` : `${unit(used)}, no limit`;
  const bar = el('span', {
    class: `meter ${kind}`.trim(), role: 'meter', 'aria-label': name, 'aria-valuemin': '0', 'aria-valuemax': '100',
    'aria-valuenow': Math.min(100, Math.round(share * 100)), 'aria-valuetext': text,
  }, el('span'));
  bar.firstChild.style.width = `${Math.min(100, share * 100)}%`;
  return el('tr', {}, el('th', { scope: 'row' }, name), el('td', { class: 'number' }, text),
    el('td', { class: 'bar' }, limit > 0 && bar), el('td', { class: 'number' }, limit > 0 && format.percent(share)));
}

function about(found) {
  return facts([
    ['Listeners', found.listeners.length && el('ul', { class: 'plain' }, found.listeners.map((text) => el('li', {}, el('code', {}, text))))],
    ['Version', found.version],
    ['Running for', format.duration(found.uptime_s)],
    ['Started', format.moment(found.started_at)],
    ['Disk', found.disk_free === null ? null : `${format.bytes(found.disk_free)} free`],
    ['Memory for messages', format.bytes(found.memory_bytes)],
    ['Store', el('code', {}, found.store_id)],
  ]);
}
